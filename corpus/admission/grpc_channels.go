// Opens one channel per item of standard input, each as an xDS client of its own.
//
// The input is a line of JSON: [[target, bootstrap], ...]. The output is one line of JSON per call, with the
// number of the channel and the status. The process ends at the end of the input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
)

const (
	pause   = 500 * time.Millisecond
	timeout = 20 * time.Second
)

// raw is a codec that passes messages as plain bytes.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

type result struct {
	Channel int    `json:"channel"`
	Code    string `json:"code"`
	Details string `json:"details"`
}

func report(channel int, code codes.Code, details string) {
	line, err := json.Marshal(result{channel, code.String(), details})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

// named is a resolver with a scheme of its own. Old versions share one xDS client between equal targets.
type named struct {
	resolver.Builder
	scheme string
}

func (n named) Scheme() string { return n.scheme }

func open(channel int, target, bootstrap string) error {
	builder, err := xds.NewXDSResolverWithConfigForTesting([]byte(bootstrap))
	if err != nil {
		return err
	}
	scheme := fmt.Sprintf("xds%d", channel)
	conn, err := grpc.NewClient(scheme+strings.TrimPrefix(target, "xds"), grpc.WithResolvers(named{builder, scheme}),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		var request, answer []byte
		err := conn.Invoke(ctx, "/corpus.Greeter/Hello", &request, &answer, grpc.ForceCodec(raw{}))
		cancel()
		report(channel, status.Code(err), status.Convert(err).Message())
		time.Sleep(pause)
	}
}

func main() {
	input := bufio.NewReader(os.Stdin)
	line, err := input.ReadBytes('\n')
	if err != nil {
		panic(err)
	}
	var channels [][2]string
	if err := json.Unmarshal(line, &channels); err != nil {
		panic(err)
	}
	for channel, item := range channels {
		go func() {
			if err := open(channel, item[0], item[1]); err != nil {
				report(channel, codes.Internal, err.Error())
			}
		}()
	}
	if _, err := io.Copy(io.Discard, input); err != nil {
		panic(err)
	}
}
