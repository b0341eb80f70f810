// Reads records, one a line, and prints each whose effect is to happen.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// docs: begin

// Inbox is what this consumer has seen. Keep both tables in the database of its effects.
type Inbox struct {
	highest map[string]string      // aggregate -> highest position
	ids     map[[3]string]struct{} // aggregate, history and id, of the last days
}

// IsNew says whether the effect of this record is to happen. Call it in the effect's transaction.
func (inbox *Inbox) IsNew(aggregate string, headers map[string]string) bool {
	history := headers["history"]
	if position, ok := headers["position"]; ok {
		if position <= inbox.highest[aggregate] {
			return false
		}
		inbox.highest[aggregate] = position
		history = position[:8]
	}
	id := [3]string{aggregate, history, headers["id"]}
	if _, seen := inbox.ids[id]; seen {
		return false
	}
	inbox.ids[id] = struct{}{}
	return true
}

// docs: end

func main() {
	inbox := Inbox{highest: map[string]string{}, ids: map[[3]string]struct{}{}}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		parts := strings.Split(lines.Text(), "\t")
		headers := map[string]string{}
		for i, name := range []string{"id", "position", "history"} {
			if parts[i+1] != "" {
				headers[name] = parts[i+1]
			}
		}
		if inbox.IsNew(parts[0], headers) {
			fmt.Printf("%s\t%s\n", parts[0], parts[4])
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
