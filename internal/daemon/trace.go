package daemon

import (
	"context"
	"fmt"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
)

// sampledShare of calls whose caller does not say is traced; callers that sample are always followed.
const sampledShare = 0.01

// tracing sends spans of gRPC calls to a collector. A nil tracing sends none.
type tracing struct{ provider *sdktrace.TracerProvider }

// startTracing does not connect: an absent collector costs its spans and nothing else.
func startTracing(ctx context.Context, c *Config, version string) (*tracing, error) {
	if c.OTLPEndpoint == "" {
		return nil, nil
	}
	headers, err := parseHeaders(c.OTLPHeaders)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(c.OTLPEndpoint), otlptracegrpc.WithHeaders(headers))
	if err != nil {
		return nil, fmt.Errorf("set up traces: %w", err)
	}
	self := resource.NewSchemaless(attribute.String("service.name", "quire"), attribute.String("service.version", version))
	return &tracing{sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), sdktrace.WithResource(self),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(sampledShare))),
	)}, nil
}

// options are what a gRPC server needs to be traced.
func (t *tracing) options() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(propagation.TraceContext{}),
	))}
}

// stop sends what is queued, until ctx ends.
func (t *tracing) stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}
