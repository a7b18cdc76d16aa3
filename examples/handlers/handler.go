// A handler of scheduled events for one VM, in Go with only the standard library. Copy it, and adapt it.
//
//	go build handler.go && ./handler [MARKER]
//
// The VM counts as prepared while the file MARKER (default: drained) exists. Put your own work into prepare and
// restore. One of them is called after every poll, so repeated calls must do no harm. The endpoint provides the VM's
// name, spelled as in Resources.
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

// The first answer may take two minutes. A Transport without Proxy ignores the proxy variables of the environment.
var client = http.Client{Timeout: 130 * time.Second, Transport: &http.Transport{}}
var marker, name, approved = append(os.Args, "drained")[1], "", map[string]bool{}

// prepare gets the VM ready for an interruption: drains, fails over, saves. It returns when the VM is ready.
func prepare() { check(os.WriteFile(marker, nil, 0o644)) }

// restore puts the VM back into service. The VM may already be in service.
func restore() { os.Remove(marker) }

func check(err error) {
	if err != nil {
		panic(err) // look catches this: the VM keeps its state
	}
}

// ask sends a GET, or a POST with a body. It panics if no complete answer arrives in time, or the status is not 200.
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

// handle prepares, approves or restores, as the events require.
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

// look polls once. After a failure, the VM keeps its state: no answer does not mean no events.
func look() {
	defer func() {
		if err := recover(); err != nil {
			fmt.Println("no usable answer:", err)
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
