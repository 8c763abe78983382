package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Files name PEM files. Those of a server are read anew for each handshake that finds them changed, so certificates
// rotate without a restart.
type Files struct {
	Cert, Key string // this side's certificate chain and key; a client without one leaves both empty
	CA        string // what the other side is verified with
}

// ServerTLS is TLS 1.3 with the files' certificate. With clients, a client certificate of the CA is required when
// required, and verified when one is sent.
func ServerTLS(f Files, clients, required bool) (*tls.Config, error) {
	pair := &reloading{cert: f.Cert, key: f.Key}
	if _, err := pair.get(); err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get() },
	}
	if !clients {
		return c, nil
	}
	pool, err := readPool(f.CA)
	if err != nil {
		return nil, err
	}
	c.ClientCAs, c.ClientAuth = pool, tls.VerifyClientCertIfGiven
	if required {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// ClientTLS is TLS 1.3 that trusts the CA alone (empty: the system's) and shows a certificate where there is one.
// serverName overrides the name that the server's certificate must bear; empty: that of the address dialled.
func ClientTLS(f Files, serverName string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: serverName}
	if f.CA != "" {
		pool, err := readPool(f.CA)
		if err != nil {
			return nil, err
		}
		c.RootCAs = pool
	}
	if f.Cert == "" && f.Key == "" {
		return c, nil
	}
	pair := &reloading{cert: f.Cert, key: f.Key}
	if _, err := pair.get(); err != nil {
		return nil, err
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.get() }
	return c, nil
}

func readPool(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, errors.New("client certificates need a CA file to be verified with")
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read CA: no certificate in %s", file)
	}
	return pool, nil
}
