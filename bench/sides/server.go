// Serves the same document with Go's net/http, without optimisation.
package main

import (
	"io"
	"log"
	"net/http"
	"os"
)

func main() {
	address, etag := os.Args[1], os.Args[3]
	body, err := os.ReadFile(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	go func() { // exit when the process that started this one does
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	http.HandleFunc("/metadata/scheduledevents", func(w http.ResponseWriter, _ *http.Request) {
		header := w.Header()
		header.Set("Content-Type", "application/json; charset=utf-8")
		header.Set("ETag", etag)
		w.Write(body)
	})
	log.Fatal(http.ListenAndServe(address, nil))
}
