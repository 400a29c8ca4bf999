// A proxyless gRPC client that makes calls continuously, through one channel per target.
//
// It answers each line of standard input with one line, the results of the calls since the last one:
// {"answers": {text: count}, "failed": {reason: count}}. The line "status" is answered with
// {"status": hexadecimal ClientStatusResponse}. It ends at the end of standard input.
// It needs GRPC_XDS_BOOTSTRAP in its environment, and the targets as its arguments. With CALL_USERS=N, the
// metadata "x-user" of the calls has N values in turn, and "user answer" is counted. With CUSTOM_POLICY, the
// policy of policy.go is registered.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	v3statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds"
	"google.golang.org/grpc/xds/csds"
	"google.golang.org/protobuf/proto"
)

const (
	pause = 2 * time.Millisecond
	// Long enough for a busy machine. A longer call counts as failed.
	timeout = 10 * time.Second
)

// raw is a codec that passes messages as plain bytes.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

type counts struct {
	Answers map[string]int `json:"answers"`
	Failed  map[string]int `json:"failed"`
}

func newCounts() *counts {
	return &counts{Answers: map[string]int{}, Failed: map[string]int{}}
}

type tally struct {
	mu     sync.Mutex
	counts *counts
}

func (t *tally) record(answer string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.counts.Answers[answer]++
		return
	}
	s := status.Convert(err)
	t.counts.Failed[fmt.Sprintf("%s: %s", s.Code(), s.Message())]++
}

func (t *tally) take() *counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.counts
	t.counts = newCounts()
	return taken
}

func callForEver(conn *grpc.ClientConn, t *tally, nUsers int) {
	for i := 0; ; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		prefix := ""
		if nUsers > 0 {
			user := fmt.Sprintf("user-%d", i%nUsers)
			ctx = metadata.AppendToOutgoingContext(ctx, "x-user", user)
			prefix = user + " "
		}
		var request, answer []byte
		err := conn.Invoke(ctx, "/e2e.Greeter/Hello", &request, &answer, grpc.ForceCodec(raw{}))
		cancel()
		t.record(prefix+string(answer), err)
		time.Sleep(pause)
	}
}

// clientStatus returns the status of all xDS resources of this client.
func clientStatus() (map[string]string, error) {
	server, err := csds.NewClientStatusDiscoveryServer()
	if err != nil {
		return nil, err
	}
	defer server.Close()
	response, err := server.FetchClientStatus(context.Background(), &v3statuspb.ClientStatusRequest{})
	if err != nil {
		return nil, err
	}
	bytes, err := proto.Marshal(response)
	if err != nil {
		return nil, err
	}
	return map[string]string{"status": hex.EncodeToString(bytes)}, nil
}

func run() error {
	if len(os.Args) < 2 {
		return fmt.Errorf("usage: %s TARGET…", os.Args[0])
	}
	nUsers := 0
	if text := os.Getenv("CALL_USERS"); text != "" {
		var err error
		if nUsers, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("CALL_USERS: %w", err)
		}
	}
	if os.Getenv("CUSTOM_POLICY") != "" {
		balancer.Register(preferBuilder{})
	}
	t := &tally{counts: newCounts()}
	for _, target := range os.Args[1:] {
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		go callForEver(conn, t, nUsers)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var answer any
		if lines.Text() == "status" {
			status, err := clientStatus()
			if err != nil {
				return err
			}
			answer = status
		} else {
			answer = t.take()
		}
		line, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
