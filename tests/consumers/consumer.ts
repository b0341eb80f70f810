// Reads records, one a line, and prints each whose effect is to happen.
declare function require(name: string): any;

// docs: begin
/** What this consumer has seen. Keep both tables in the database of its effects. */
class Inbox {
  private highest = new Map<string, string>(); // aggregate -> highest position
  private ids = new Set<string>(); // aggregate, history and id, of the last days

  /** Whether the effect of this record is to happen. Call it in the effect's transaction. */
  isNew(aggregate: string, headers: Map<string, string>): boolean {
    const position = headers.get("position");
    if (position !== undefined) {
      const highest = this.highest.get(aggregate);
      if (highest !== undefined && position <= highest) return false;
      this.highest.set(aggregate, position);
    }
    const history = position === undefined ? headers.get("history") : position.slice(0, 8);
    const id = JSON.stringify([aggregate, history, headers.get("id")]);
    if (this.ids.has(id)) return false;
    this.ids.add(id);
    return true;
  }
}
// docs: end

const inbox = new Inbox();
const text: string = require("fs").readFileSync(0, "utf8");
for (const line of text.split("\n").slice(0, -1)) {
  const [aggregate, id, position, history, value] = line.split("\t") as [string, string, string, string, string];
  const headers = new Map<string, string>();
  for (const [name, value] of Object.entries({ id, position, history })) {
    if (value !== "") headers.set(name, value);
  }
  if (inbox.isNew(aggregate, headers)) console.log(`${aggregate}\t${value}`);
}
