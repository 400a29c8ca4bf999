// kube-stub is a Kubernetes API without objects, for an istiod whose configuration comes from Chancery.
//
//	kube-stub ADDRESS
package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: kube-stub ADDRESS")
	}
	log.Fatal(http.ListenAndServe(os.Args[1], http.HandlerFunc(serve)))
}

// discovery has the answers to questions about the API itself.
var discovery = map[string]any{
	"/version": map[string]any{"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
	"/api":     map[string]any{"kind": "APIVersions", "versions": []string{"v1"}},
	"/api/v1":  map[string]any{"kind": "APIResourceList", "groupVersion": "v1", "resources": []string{}},
	"/apis":    map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []string{}},
}

func serve(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch path := strings.TrimSuffix(r.URL.Path, "/"); {
	case discovery[path] != nil:
		answer(w, http.StatusOK, discovery[path])
	case r.Method == http.MethodDelete:
		answer(w, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	case r.Method != http.MethodGet:
		// A created object equals the request, in the same format.
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		if _, err := io.Copy(w, r.Body); err != nil {
			log.Print(err)
		}
	case query.Get("sendInitialEvents") == "true":
		// The client then lists and watches.
		fail(w, http.StatusUnprocessableEntity, "Invalid")
	case query.Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(5 * time.Minute):
		}
	case isObject(path):
		fail(w, http.StatusNotFound, "NotFound")
	default:
		list := map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": []string{}}
		if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
			list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
		}
		answer(w, http.StatusOK, list)
	}
}

// isObject returns whether a path names one object instead of a list.
func isObject(path string) bool {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	skipped := 2 // api/v1
	if parts[0] == "apis" {
		skipped = 3 // apis/GROUP/VERSION
	}
	if len(parts) < skipped {
		return true
	}
	parts = parts[skipped:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	return len(parts) != 1
}

func fail(w http.ResponseWriter, code int, reason string) {
	answer(w, code, map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
	})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		log.Print(err)
	}
}
