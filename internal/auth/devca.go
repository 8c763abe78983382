package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/quire-kv/quire/namespace"
)

// DevCA describes what WriteDevCA makes. Zero values are defaults.
type DevCA struct {
	Dir      string
	Hosts    []string              // names and addresses of the server, beside localhost, 127.0.0.1 and ::1
	Clients  []namespace.Principal // default: one operator and one engine of tenant "default"
	Lifetime time.Duration         // default 90 days
	Now      time.Time             // default time.Now()
}

// Names of the files in DevCA.Dir; a client's are client-<tenant>-<role>-<name>.pem and -key.pem.
const (
	CAFile         = "ca.pem"
	ServerCertFile = "server.pem"
	ServerKeyFile  = "server-key.pem"
)

// ClientFiles are the names of a principal's files in DevCA.Dir.
func ClientFiles(p namespace.Principal) (cert, key string) {
	base := "client-" + p.Tenant + "-" + RoleName(p.Role) + "-" + p.Name
	return base + ".pem", base + "-key.pem"
}

// WriteDevCA makes a CA for development with one server and some client certificates, ECDSA P-256. The CA's key is
// forgotten at once: to add a client, make all anew. Keys are written 0600; files that exist are not overwritten.
// It returns the paths written.
func WriteDevCA(d DevCA) (written []string, err error) {
	if err := d.fill(); err != nil {
		return nil, err
	}
	ca, caKey, err := d.root()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory for certificates: %w", err)
	}
	put := func(name, kind string, der []byte, mode os.FileMode) error {
		path := filepath.Join(d.Dir, name)
		if err := writePEM(path, kind, der, mode); err != nil {
			return err
		}
		written = append(written, path)
		return nil
	}
	if err := put(CAFile, pemCert, ca.Raw, 0o644); err != nil {
		return written, err
	}
	issue := func(cert, key string, t *x509.Certificate) error {
		der, keyDER, err := sign(t, ca, caKey)
		if err != nil {
			return err
		}
		if err := put(cert, pemCert, der, 0o644); err != nil {
			return err
		}
		return put(key, pemKey, keyDER, 0o600)
	}
	if err := issue(ServerCertFile, ServerKeyFile, d.server()); err != nil {
		return written, err
	}
	for _, p := range d.Clients {
		cert, key := ClientFiles(p)
		if err := issue(cert, key, d.client(p)); err != nil {
			return written, err
		}
	}
	return written, nil
}

const (
	pemCert = "CERTIFICATE"
	pemKey  = "PRIVATE KEY"
)

func (d *DevCA) fill() error {
	if d.Lifetime == 0 {
		d.Lifetime = 90 * 24 * time.Hour
	}
	if d.Now.IsZero() {
		d.Now = time.Now()
	}
	if d.Clients == nil {
		d.Clients = []namespace.Principal{
			{Name: "operator", Tenant: "default", Role: namespace.RoleOperator},
			{Name: "engine", Tenant: "default", Role: namespace.RoleEngine},
		}
	}
	for _, p := range d.Clients {
		if _, err := ParsePrincipalURI(PrincipalURI(p)); err != nil {
			return fmt.Errorf("client %q: %w", PrincipalURI(p), err)
		}
	}
	return nil
}

func (d *DevCA) template(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    d.Now.Add(-time.Hour), // clocks of the other side may be behind
		NotAfter:     d.Now.Add(d.Lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func (d *DevCA) root() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	t := d.template("quire development CA")
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make CA key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("make CA: %w", err)
	}
	ca, err := x509.ParseCertificate(der)
	return ca, key, err
}

func (d *DevCA) server() *x509.Certificate {
	t := d.template("quire server")
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	t.DNSNames = []string{"localhost"}
	t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, h := range d.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return t
}

func (d *DevCA) client(p namespace.Principal) *x509.Certificate {
	t := d.template(p.Name)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	t.URIs = []*url.URL{{Scheme: uriScheme, Host: p.Tenant, Path: "/" + RoleName(p.Role) + "/" + p.Name}}
	return t
}

func sign(t, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (der, keyDER []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key of %s: %w", t.Subject.CommonName, err)
	}
	if der, err = x509.CreateCertificate(rand.Reader, t, ca, key.Public(), caKey); err != nil {
		return nil, nil, fmt.Errorf("sign %s: %w", t.Subject.CommonName, err)
	}
	keyDER, err = x509.MarshalPKCS8PrivateKey(key)
	return der, keyDER, err
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	err = pem.Encode(f, &pem.Block{Type: kind, Bytes: der})
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	return nil
}
