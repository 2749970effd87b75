"""A seeded stream of agent messages of about 1 KB of JSON each, with the entropy of real transcripts.

Every message is built from a shape (question, prose answer, code, structured tool result, log output)
filled with Zipf-distributed words, a pool of entities that lives as long as the transcript (paths, symbols,
people) and fresh numbers, hashes and timestamps. No message repeats another one, so a compressor finds what
it finds in real transcripts: shared scaffolding and vocabulary, not whole copies. Measured with zstd level
3: one message 1.85 ×, a thread of 1 MB 3.5 x; real transcripts gave 1.9 x and 3.6 x. ``python -m
bench.messages`` prints these figures for a seed.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

_VOCABULARY = """
the to of and a in is that it for on with this be as are we not you from but have or can was will if by at
one has all they their which there would what when so an more do no about out up them some time could into
than only other its then two these may first any my now such like our over also after use how should because
each just where most through between before under same both many must even still while since without during
against whether again once file value error test code data function state result call user message return
list type name line change read write check run update version store key object number string table query
row field index request response service server client process memory cache config option default module
package import build branch commit merge release deploy log event task step plan note issue fix bug cause
reason case path order account invoice payment customer report month total amount balance entry ledger
record draft review approve reject pending complete start stop begin finish open close create delete insert
remove replace rename move copy send receive fetch load save parse format validate convert compare match
search find filter sort group count sum average limit offset page batch queue worker thread lock retry
timeout deadline schedule window interval delay rate latency throughput benchmark profile trace metric alert
threshold small large quick slow long short early late clean empty missing invalid correct wrong stale fresh
partial whole exact likely possible necessary safe strict simple complex clear obvious hidden public private
local remote global current previous next final actual expected similar different separate common rare
single double several few every another however therefore instead otherwise although unless until below
above behind across within toward along despite probably already never always often sometimes usually rarely
exactly roughly nearly almost quite rather fairly it's don't doesn't can't I'll we'll that's let's won't
isn't they're you'll there's hasn't wouldn't shouldn't agree ask assume avoid become believe break bring
carry catch cause choose collapse collect consider contain continue cover decide depend describe design
detect differ discover drop emit enable ensure escape exceed exist expand expect explain expose extend
extract fail fall follow force forget gather generate give grow guard guess handle happen help hold ignore
imply improve include increase infer inspect involve join jump keep know lead leave let lose maintain make
mark mean measure mention mind mix need notice obtain occur omit own pass pay perform pick point predict
prefer prepare prevent print produce promise propose prove provide push put raise reach realise rebuild
recall reconcile recover reduce refer refuse relate rely remain remember repeat require reserve resolve
restart restore revert rewrite rotate satisfy say scan see seem select separate serve set settle share shift
show sign skip solve split spread stay strip submit suggest supply support suppose survive swap switch take
tell throw touch track transfer trust try turn understand verify wait walk want warn watch wonder work worry
wrap yield afternoon allowance appendix archive argument attempt audience average backlog baseline boundary
bracket budget bundle calendar candidate capacity category ceiling chapter checksum cluster column comment
company compiler condition conflict consumer contract corner counter coverage currency cursor customs damage
decision delivery dependency detail device digest discount document domain duplicate duration economy editor
effort element employee engine environment estimate evidence example exception exchange exercise expense
experiment export factor failure feature figure folder footer forecast fraction framework frequency fragment
gateway guideline handler hardware header history holiday identity incident income instance insurance
interest interface inventory iteration journal kernel keyword knowledge label language layer layout leader
legacy length letter level library licence machine manager margin market material maximum meeting method
midnight migration minimum mistake model morning network nothing notice object obligation office operator
opinion outcome outline output overhead owner parent participant partner password patch pattern penalty
percentage period permission pipeline platform policy portion position practice precision premium presence
pressure principle priority problem procedure product progress project property protocol provider purchase
purpose quality quarter question quota quote range reader receipt recipient reference refund region register
regression relation replica repository resource revenue revision risk roadmap role rollback routine rule
sample scenario schema scope script season section security segment selection sender sentence sequence
session shadow shipment signal signature silence snapshot socket software solution source specification
spreadsheet stage standard statement statistic status storage strategy stream structure subject subscription
substance success suffix summary supplier surface symbol symptom syntax system target tariff template tenant
territory ticket token tolerance topic traffic transaction transition treasury trigger tuple uncertainty
unit upgrade usage vendor venture volume voucher warehouse warning weekend weight wording workaround
workflow workspace yesterday zone
"""
_PHRASES = """\
as soon as|in order to|as far as I can see|at the end of|a couple of|on the other hand|in this case|
the rest of|instead of|because of|as a result|at least|so that|make sure that|for example|
it turns out that|looking at the|before we go on|the same as|one of the|take care of|at the moment|
up to date|I have checked|I would suggest|the next step is|let me know if|there is no|it should be|
we need to|does not match"""
TOP = ["src", "tests", "services", "apps", "lib", "tools", "docs", "migrations"]
EXTENSIONS = [".py", ".py", ".py", ".ts", ".sql", ".md", ".toml", ".go"]
_PEOPLE = "Mara Jonas Aiko Priya Tomas Elif Nuno Greta Samir Oksana Leon Ines Dario Wanda Kofi Bente"
WORDS = _VOCABULARY.split()
PHRASES = _PHRASES.replace("\n", "").split("|")
PEOPLE = _PEOPLE.split()
TOOLS = [
    "read_file",
    "search_code",
    "run_tests",
    "query_ledger",
    "list_invoices",
    "fetch_page",
    "apply_patch",
]
LEVELS = ["DEBUG", "INFO", "INFO", "INFO", "WARNING", "ERROR"]
SIZE_LOW, SIZE_HIGH, SIZE_MODE = 600, 1500, 970


class Transcript:
    """An endless, reproducible iterator over messages: the same seed gives the same messages everywhere."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.words = WORDS[:100] + self.random.sample(WORDS[100:], len(WORDS) - 100)
        self.names = [word for word in self.words[100:] if word.isalpha()]
        self.weights = list(itertools.accumulate(1 / (rank + 2.5) ** 1.02 for rank in range(len(self.words))))
        self.paths = [self._path() for _ in range(80)]
        self.symbols = [f"{self._rare()}_{self._rare()}" for _ in range(120)]
        self.clock = 1_767_225_600.0 + self.random.random() * 1e6
        self.number = 0

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        self.number += 1
        self.clock += self.random.expovariate(1 / 20)
        size = int(self.random.triangular(SIZE_LOW, SIZE_HIGH, SIZE_MODE))
        shape = self.random.choices(
            (self._question, self._prose, self._code, self._call, self._rows, self._log),
            (8, 20, 20, 10, 25, 17),
        )[0]
        return shape(size)

    def short(self) -> Message:
        """A user's message of about 60 bytes of JSON."""
        return {"role": "user", "content": " ".join(self._words(8))[:32]}

    def _rare(self) -> str:
        return self.random.choice(self.names)

    def _path(self) -> str:
        folders = "/".join(self._rare() for _ in range(self.random.randint(1, 2)))
        return f"{self.random.choice(TOP)}/{folders}/{self._rare()}{self.random.choice(EXTENSIONS)}"

    def _hex(self, digits: int) -> str:
        return f"{self.random.getrandbits(4 * digits):0{digits}x}"

    def _words(self, count: int) -> list[str]:
        return self.random.choices(self.words, cum_weights=self.weights, k=count)

    def _stamp(self) -> str:
        self.clock += self.random.random() * 3
        seconds = int(self.clock) % 86_400
        day = int(self.clock) // 86_400 % 28 + 1
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"2026-03-{day:02}T{clock}.{self.random.randrange(1000):03}Z"

    def _sentence(self) -> str:
        words = self._words(self.random.randint(6, 20))
        chance = self.random.random()
        spot = self.random.randrange(1, len(words))
        if self.random.random() < 0.6:
            words.insert(0, self.random.choice(PHRASES))
        if chance < 0.15:
            words.insert(spot, f"`{self.random.choice(self.symbols)}`")
        elif chance < 0.28:
            words.insert(spot, f"`{self.random.choice(self.paths)}:{self.random.randint(1, 600)}`")
        elif chance < 0.38:
            words.insert(spot, self.random.choice(PEOPLE))
        elif chance < 0.46:
            words.insert(spot, f"{self.random.randint(1, 90_000) / 100:,.2f} EUR")
        text = " ".join(words)
        if len(words) > 11:
            text = text.replace(words[8] + " ", words[8] + ", ", 1)
        return text[0].upper() + text[1:] + self.random.choice("......?:")

    def _text(self, size: int) -> str:
        sentences: list[str] = []
        length = 0
        while length < size:
            sentence = self._sentence()
            if self.random.random() < 0.15:
                sentence = "\n\n- " + sentence
            sentences.append(sentence)
            length += len(sentence) + 1
        return " ".join(sentences)

    def _question(self, size: int) -> Message:
        return {"role": "user", "content": self._text(size - 60), "name": self.random.choice(PEOPLE).lower()}

    def _prose(self, size: int) -> Message:
        usage = {
            "input_tokens": self.random.randint(900, 90_000),
            "output_tokens": self.random.randint(90, 900),
        }
        return {"role": "assistant", "content": self._text(size - 110), "usage": usage}

    def _code(self, size: int) -> Message:
        lines = [self._text(160), "", "```python"]
        length = 250
        while length < size:
            block = self._function()
            lines += block
            length += sum(map(len, block)) + len(block)
        return {"role": "assistant", "content": "\n".join([*lines, "```"]), "finish_reason": "stop"}

    def _function(self) -> list[str]:
        pick, symbols = self.random.choice, self.symbols
        argument, other, result = self._rare(), self._rare(), self._rare()
        kind = f'{argument}.{self._rare()}("{self._hex(6)}")'
        body = [
            f"    {result} = {pick(symbols)}({argument}, {other}={self.random.randint(0, 500)})",
            f"    if {result} is None or {result}.{self._rare()} > {self.random.randint(2, 9000)}:",
            f'        raise ValueError(f"{" ".join(self._words(5))}: {{{argument}!r}}")',
            f"    for {self._rare()} in {result}.{pick(symbols)}({other}):",
            f"        self.{self._rare()}[{argument}] = {pick(symbols)}({result}, {other})",
            f"    # {' '.join(self._words(9)).capitalize()}.",
            f"    {other} = [{argument} for {argument} in {result} if {kind}]",
        ]
        kept = [line for line in body if self.random.random() < 0.7]
        default = self.random.randint(0, 99)
        head = f"def {pick(symbols)}(self, {argument}: str, {other}: int = {default}):"
        return [head, *kept, f"    return {result}", ""]

    def _call(self, size: int) -> Message:
        arguments = {
            "path": self.random.choice(self.paths),
            "query": " ".join(self._words(6)),
            "limit": self.random.randint(1, 200),
            "patch": self._text(max(80, size - 420)),
        }
        function = {"name": self.random.choice(TOOLS), "arguments": json.dumps(arguments)}
        call = {"id": "call_" + self._hex(24), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def _rows(self, size: int) -> Message:
        rows = [self._row() for _ in range(max(1, (size - 150) // 165))]
        return {"role": "tool", "tool_call_id": "call_" + self._hex(24), "content": rows, "truncated": False}

    def _row(self) -> dict[str, Any]:
        return {
            "invoice": f"INV-{self.random.randint(10_000, 99_999)}",
            "customer": " ".join(self._words(3)),
            "amount": self.random.randint(100, 900_000) / 100,
            "status": self.random.choice(("open", "paid", "paid", "overdue", "draft")),
            "issued": self._stamp()[:10],
            "currency": "EUR",
            "note": " ".join(self._words(5)),
            "reconciled": self.random.random() < 0.5,
        }

    def _log(self, size: int) -> Message:
        lines: list[str] = []
        length = 130
        while length < size:
            line = (
                f"{self._stamp()} {self.random.choice(LEVELS):7} {self.random.choice(self.symbols)} "
                f"request_id={self._hex(6)} {' '.join(self._words(5))} "
                f"duration_ms={self.random.randint(1, 900)} status=200"
            )
            lines.append(line)
            length += len(line) + 2
        return {
            "role": "tool",
            "tool_call_id": "call_" + self._hex(24),
            "content": "\n".join(lines),
            "exit_code": 0,
        }


def main() -> None:
    """Print the size and compressibility of a transcript, to compare the generator with real transcripts."""
    import argparse
    import statistics

    import zstandard

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", type=int, default=1000)
    options = parser.parse_args()
    encoded = [json.dumps(m).encode() for m in itertools.islice(Transcript(options.seed), options.messages)]
    pack = zstandard.ZstdCompressor(level=3).compress
    single = [len(body) / len(pack(body)) for body in encoded]
    whole = b"".join(encoded)
    low, high, mean = min(map(len, encoded)), max(map(len, encoded)), len(whole) / len(encoded)
    print(f"{len(encoded)} messages, {len(set(encoded))} distinct, {low} to {high} B, mean {mean:.0f} B")
    print(
        f"zstd -3: one message {statistics.median(single):.2f} x, whole {len(whole) / len(pack(whole)):.2f} x"
    )


if __name__ == "__main__":
    main()
