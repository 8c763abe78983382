package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// transport is TLS or plaintext, as Options say.
func (o *Options) transport() (credentials.TransportCredentials, error) {
	if o.plaintext() {
		return insecure.NewCredentials(), nil
	}
	c, err := o.tls()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(c), nil
}

// tls is how the server is verified, and this side's certificate.
func (o *Options) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read CA: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s holds no PEM certificate", o.CAFile)
		}
	}
	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// bearer puts the token into each call.
type bearer struct {
	header map[string]string
	secure bool
}

func newBearer(token string, secure bool) bearer {
	return bearer{header: map[string]string{"authorization": "Bearer " + token}, secure: secure}
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return b.header, nil
}

func (b bearer) RequireTransportSecurity() bool { return b.secure }
