package namespace

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/quire-kv/quire/reason"
)

// TenantQuota is what a tenant may hold in a node. The zero value guarantees nothing and bounds nothing.
type TenantQuota struct {
	// GuaranteeBytes and DiskGuaranteeBytes of memory and of the disk tier are the tenant's while it wants them: what
	// others need is not taken from them.
	GuaranteeBytes     uint64 `json:"guarantee_bytes"`
	DiskGuaranteeBytes uint64 `json:"disk_guarantee_bytes"`
	// QuotaBytes bounds what its pages take, however many copies they have; 0: no bound. What lies between guarantee and
	// quota is burst: it is there while others leave room.
	QuotaBytes uint64 `json:"quota_bytes"`
}

// TenantRecord is a tenant whose quota an operator set, as of one revision.
type TenantRecord struct {
	Name string
	TenantQuota
	Revision Revision
}

// TierBytes is a size of memory and of the disk tier.
type TierBytes struct{ Memory, Disk uint64 }

// Bounds of what is kept in memory, and of the guarantees among them: each has a leaf set of its own in every policy.
const (
	maxTenantRecords = 1 << 12
	MaxGuarantees    = 255
)

func tenantKey(name string) []byte { return append([]byte{kindTenant}, name...) }

func (q TenantQuota) guarantees() bool { return q.GuaranteeBytes != 0 || q.DiskGuaranteeBytes != 0 }

// check judges the quota of a tenant beside those of others, for a node of so many bytes. A guarantee that does not grow
// is always taken.
func (q TenantQuota) check(was TenantQuota, others []TenantRecord, room TierBytes) *Refusal {
	var have TierBytes
	guaranteed := 0
	for i := range others {
		have.Memory += others[i].GuaranteeBytes
		have.Disk += others[i].DiskGuaranteeBytes
		if others[i].guarantees() {
			guaranteed++
		}
	}
	fits := func(path, what string, asked, was, have, room uint64) *Refusal {
		switch {
		case q.QuotaBytes != 0 && asked > q.QuotaBytes:
			return invalid(path, "%d bytes are more than the quota of %d: write less, or a larger quota", asked, q.QuotaBytes)
		case asked > was && (asked > room || have > room-asked):
			return refuse(reason.LimitExceeded, path, "%d bytes of %s, others are guaranteed %d, it has %d: at most %d are left",
				asked, what, have, room, room-min(have, room))
		}
		return nil
	}
	if r := fits("guarantee_bytes", "memory", q.GuaranteeBytes, was.GuaranteeBytes, have.Memory, room.Memory); r != nil {
		return r
	}
	if r := fits("disk_guarantee_bytes", "disk", q.DiskGuaranteeBytes, was.DiskGuaranteeBytes, have.Disk, room.Disk); r != nil {
		return r
	}
	switch {
	case q.guarantees() && guaranteed >= MaxGuarantees:
		return refuse(reason.LimitExceeded, "", "%d tenants have a guarantee: take one away first", guaranteed)
	case q != TenantQuota{} && len(others) >= maxTenantRecords:
		return refuse(reason.LimitExceeded, "", "%d tenants have a quota: take one away first", len(others))
	}
	return nil
}

// SetTenant changes the quota of a tenant as f says, for nodes of so many bytes. The sum of guarantees stays within
// them; the zero quota forgets the tenant. Operators only.
func (r *Registry) SetTenant(ctx context.Context, by Principal, name string, room TierBytes,
	f func(TenantQuota) TenantQuota) (TenantRecord, error) {
	if refused := onlyOperator(by); refused != nil {
		return TenantRecord{}, refused
	}
	if !isWord(name) {
		return TenantRecord{}, invalid("tenant", "%.64q: write a tenant of 1 to 64 of a-z, A-Z, 0-9, _, - and .", name)
	}
	var out TenantRecord
	at, err := r.commit(ctx, func(c *change) error {
		have, err := c.tenants()
		if err != nil {
			return err
		}
		out = TenantRecord{Name: name}
		was := TenantQuota{}
		if i := slices.IndexFunc(have, func(t TenantRecord) bool { return t.Name == name }); i >= 0 {
			was, out.Revision = have[i].TenantQuota, have[i].Revision
			have = slices.Delete(have, i, i+1)
		}
		out.TenantQuota = f(was)
		if out.TenantQuota == was { // nothing to do, or an earlier try went through
			return nil
		}
		if refused := out.check(was, have, room); refused != nil {
			return refused
		}
		put := Record{Key: tenantKey(name)}
		if out.TenantQuota != (TenantQuota{}) {
			put.Value = encodeRecord(out.TenantQuota)
		}
		c.puts = []Record{put}
		return nil
	})
	if err != nil {
		return TenantRecord{}, err
	}
	out.Revision = max(out.Revision, at)
	return out, nil
}

func (c *change) tenants() ([]TenantRecord, error) {
	records, err := c.records([]byte{kindTenant})
	if err != nil {
		return nil, err
	}
	out := make([]TenantRecord, len(records))
	for i, rec := range records {
		if out[i], err = decodeTenant(rec); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func decodeTenant(r Record) (TenantRecord, error) {
	t := TenantRecord{Name: string(r.Key[1:]), Revision: r.Revision}
	if err := decodeRecord(r.Value, &t.TenantQuota); err != nil {
		return t, fmt.Errorf("tenant %q: %w", t.Name, err)
	}
	return t, nil
}

// Tenants lists tenants that have a quota, by name.
func (r *Registry) Tenants() []TenantRecord { return r.snap.Load().tenantList() }

func (s *snapshot) tenantList() []TenantRecord {
	var out []TenantRecord
	for _, t := range s.tenants {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b TenantRecord) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// WatchTenants calls changed now and after every change of what Tenants answers, until ctx ends (its error), changed
// answers an error (that), or the registry is closed (ErrClosed). Changes that come while it runs are told of once.
func (r *Registry) WatchTenants(ctx context.Context, changed func() error) error {
	seen := []TenantRecord(nil)
	for first := true; ; first = false {
		s := r.snap.Load()
		if now := s.tenantList(); first || !slices.Equal(now, seen) {
			seen = now
			if err := changed(); err != nil {
				return err
			}
		}
		select {
		case <-s.newer:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.stopped:
			return r.ended()
		}
	}
}
