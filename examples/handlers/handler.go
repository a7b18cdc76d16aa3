// A handler of scheduled events in Go, with nothing but the standard library; for one VM, to be copied.
//
//	go build handler.go && ./handler [MARKER]
//
// The VM is prepared while the file MARKER (drained) exists. Put your own work into prepare and restore: both may be
// called twice, after a reboot for example. The name of the VM comes from the endpoint, as it stands in Resources.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

const base = "http://169.254.169.254/metadata/"
const eventsURL = base + "scheduledevents?api-version=2020-07-01"
const nameURL = base + "instance/compute/name?api-version=2021-02-01&format=text"

type event struct {
	EventId, EventStatus string
	Resources            []string
}

// The first answer may take two minutes. A transport that names no proxy uses none, whatever the environment says.
var client = http.Client{Timeout: 130 * time.Second, Transport: &http.Transport{}}
var marker, name, approved = append(os.Args, "drained")[1], "", map[string]bool{}

// prepare gets ready to be interrupted: drains, fails over, saves. It returns when that is done.
func prepare() { check(os.WriteFile(marker, nil, 0o644)) }

// restore takes up work again; there may be nothing to take up.
func restore() { os.Remove(marker) }

func check(err error) {
	if err != nil {
		panic(err) // until main: all stays as it is
	}
}

// ask sends GET, or POST with a body. It panics where there is no whole answer in time, or another status than 200.
func ask(method, url, body string) []byte {
	request, _ := http.NewRequest(method, url, strings.NewReader(body))
	request.Header.Set("Metadata", "true")
	answer, err := client.Do(request)
	check(err)
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if check(err); answer.StatusCode != 200 {
		panic(answer.Status)
	}
	return content
}

// handle brings the VM into the state that the events of a document ask for.
func handle(events []event) {
	isHit := false
	for _, each := range events {
		isMine := strings.Contains(" "+strings.Join(each.Resources, " ")+" ", " "+name+" ")
		if isMine {
			isHit = true
			prepare()
		}
		if isMine && each.EventStatus == "Scheduled" && !approved[each.EventId] {
			ask("POST", eventsURL, `{"StartRequests": [{"EventId": "`+each.EventId+`"}]}`)
			approved[each.EventId] = true // only after 200: an approval without an answer is sent again
		}
	}
	if !isHit {
		restore()
	}
}

// look asks once. Where an answer says nothing, all stays as it is.
func look() {
	defer func() {
		if err := recover(); err != nil {
			fmt.Println("no answer that says anything:", err)
		}
	}()
	var document struct{ Events *[]event }
	check(json.Unmarshal(ask("GET", eventsURL, ""), &document))
	client.Timeout = 10 * time.Second
	if name == "" {
		name = string(ask("GET", nameURL, ""))
	}
	handle(*document.Events)
}

func main() {
	for ; ; time.Sleep(time.Second) {
		look()
	}
}
