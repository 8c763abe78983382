package page

// PayloadAlign is where a payload may begin in a region: whole memory pages, so that direct I/O, registered memory
// and mapped views need no copy to be aligned.
const PayloadAlign = 4 << 10

// HeadBytes is what the tier that holds a region keeps for itself at its beginning: a durable tier files its record
// there. Elsewhere these bytes mean nothing and are never looked at.
const HeadBytes = 64

// PayloadOffset is where the payload of an extent begins in its region, behind the tier's own bytes, the encoded
// header and zeros.
//
//	0        HeadBytes      HeadBytes + headerBytes     PayloadOffset            PayloadOffset + payload
//	+--------+--------------+---------------------------+------------------------+
//	| tier's | header       | zeros                     | payload                |
//	+--------+--------------+---------------------------+------------------------+
//
// The header comes first and tells its own length, so a region explains itself wherever it lies.
func PayloadOffset(headerBytes int) int {
	return (HeadBytes + headerBytes + PayloadAlign - 1) &^ (PayloadAlign - 1)
}

// RegionBytes is the size of the region of an extent of view v.
func RegionBytes(v View, cellBytes uint32, provenanceBytes int) int64 {
	return int64(PayloadOffset(EncodedHeaderBytes(v, cellBytes, provenanceBytes))) + int64(v.Cells())*int64(cellBytes)
}
