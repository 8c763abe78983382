package namespace

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/quire-kv/quire/reason"
)

// TokenRecord is a bearer token as kept: its hash, never the secret.
type TokenRecord struct {
	Name    string
	Hash    [32]byte  // SHA-256 of the secret, which has 256 random bits
	By      Principal // who the bearer is
	Created time.Time
	Expiry  time.Time // zero: never
}

// maxTokens bounds what is kept in memory.
const maxTokens = 1 << 14

// checkToken judges a new token among those that exist.
func checkToken(t TokenRecord, have []TokenRecord, now time.Time) *Refusal {
	switch {
	case !isWord(t.Name):
		return invalid("name", "%.64q: write 1 to 64 of a-z, A-Z, 0-9, _, - and .", t.Name)
	case t.Hash == [32]byte{}:
		return invalid("hash", "missing")
	case t.By.Role < RoleEngine || t.By.Role > RoleReadOnly:
		return invalid("role", "write engine, operator or read-only")
	case !isWord(t.By.Tenant) && !(t.By.Role == RoleOperator && t.By.Tenant == ""):
		return invalid("tenant", "%.64q: write a tenant of 1 to 64 of a-z, A-Z, 0-9, _, - and .", t.By.Tenant)
	case t.By.Name == "" || !isPlain(t.By.Name):
		return invalid("principal", "missing: write who the bearer is")
	case !t.Expiry.IsZero() && !now.Before(t.Expiry):
		return invalid("expiry", "past: write a time to come, or none")
	case len(have) >= maxTokens:
		return refuse(reason.LimitExceeded, "", "%d tokens: revoke some first", len(have))
	}
	for i := range have {
		if have[i].Name == t.Name || have[i].Hash == t.Hash {
			return invalid("name", "%q is taken: choose another, or revoke it first", have[i].Name)
		}
	}
	return nil
}

// PutToken stores a token; the name must be free. Operators only.
func (r *Registry) PutToken(ctx context.Context, by Principal, t TokenRecord) error {
	if refused := onlyOperator(by); refused != nil {
		return refused
	}
	t.Created, t.Expiry = t.Created.UTC().Round(0), t.Expiry.UTC().Round(0)
	_, err := r.commit(ctx, func(c *change) error {
		have, err := c.tokens()
		if err != nil {
			return err
		}
		if slices.Contains(have, t) { // an earlier try went through, or the caller asks again
			return nil
		}
		if refused := checkToken(t, have, r.wall()); refused != nil {
			return refused
		}
		c.puts = []Record{{Key: tokenKey(t.Name), Value: encodeRecord(tokenRecord{t.Hash, t.By, t.Created, t.Expiry})}}
		return nil
	})
	return err
}

func (c *change) tokens() ([]TokenRecord, error) {
	records, err := c.records([]byte{kindToken})
	if err != nil {
		return nil, err
	}
	out := make([]TokenRecord, len(records))
	for i, rec := range records {
		if out[i], err = decodeToken(rec); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Tokens lists, sorted by name. Operators only.
func (r *Registry) Tokens(by Principal) ([]TokenRecord, error) {
	if refused := onlyOperator(by); refused != nil {
		return nil, refused
	}
	var out []TokenRecord
	for _, t := range r.snap.Load().tokens {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b TokenRecord) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// RevokeToken forgets a token: the next call with it is refused. Operators only.
func (r *Registry) RevokeToken(ctx context.Context, by Principal, name string) error {
	if refused := onlyOperator(by); refused != nil {
		return refused
	}
	tried := false
	_, err := r.commit(ctx, func(c *change) error {
		have, err := c.tokens()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(have, func(t TokenRecord) bool { return t.Name == name }) {
			if tried { // an earlier try of unknown outcome, or somebody else: it is gone
				return nil
			}
			return refuse(reason.NotFound, "name", "no token %.64q: token list shows them", name)
		}
		tried = true
		c.puts = []Record{{Key: tokenKey(name)}}
		return nil
	})
	return err
}

// TokenByHash finds a live token, from memory.
func (r *Registry) TokenByHash(h [32]byte) (TokenRecord, bool) {
	t, ok := r.snap.Load().tokens[h]
	if !ok || !t.Expiry.IsZero() && !r.o.Now().Before(t.Expiry) {
		return TokenRecord{}, false
	}
	return t, true
}
