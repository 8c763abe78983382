package offheap

func adviseHuge([]byte) {}
