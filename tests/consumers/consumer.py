"""Reads records, one a line, and prints each whose effect is to happen."""
import sys


# docs: begin
class Inbox:
    """What this consumer has seen. Keep both tables in the database of its effects."""

    def __init__(self):
        self.highest = {}  # aggregate -> highest position
        self.ids = set()  # (aggregate, history, id) of the last days

    def is_new(self, aggregate, headers):
        """Whether the effect of this record is to happen. Call it in the effect's transaction."""
        position = headers.get("position")
        if position is not None:
            if position <= self.highest.get(aggregate, ""):
                return False
            self.highest[aggregate] = position
        history = headers["history"] if position is None else position[:8]
        known_by = (aggregate, history, headers["id"])
        if known_by in self.ids:
            return False
        self.ids.add(known_by)
        return True
# docs: end


def main():
    inbox = Inbox()
    for line in sys.stdin:
        aggregate, record_id, position, history, value = line.rstrip("\n").split("\t")
        named = {"id": record_id, "position": position, "history": history}
        headers = {name: text for name, text in named.items() if text}
        if inbox.is_new(aggregate, headers):
            print(aggregate, value, sep="\t")


main()
