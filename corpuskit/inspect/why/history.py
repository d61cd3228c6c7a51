"""All that happened to one document: where it came from, what every stage said, where it went.

Of each phase one part is opened, and of that one row group: parts are sorted by key. So a history
costs the same in a corpus of any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corpuskit.engine import registry
from corpuskit.engine.records import FIXED, MEASURES
from corpuskit.engine.status import sealed
from corpuskit.inspect.why.cluster import cluster_facts
from corpuskit.inspect.why.keyed import ROW, plain, rows_of, sidecar_row
from corpuskit.inspect.why.lookup import Documents, find
from corpuskit.inspect.why.wording import Word, bounds_of, excerpts, meaning_of
from corpuskit.stage import StreamingStage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Part, Seal
    from corpuskit.inspect.why.sightings import Training

SHOWN_CHARS = 600
"""So much of the text that a document has now is in its history."""

_DIVERTED = "aside:"


def history(run: RunDirectory, document: str) -> dict[str, Any]:
    """Return the history of a document as JSON values; of several with this id, the first one's.

    Args:
        document: an id, or a key.

    Raises:
        UsageError: no document of the run has this id or key.
    """
    reader = Histories(run)
    return reader.of(find(reader.documents, "id", document).keys[0])


class Histories:
    """Tells the histories of documents of one run; reads its seals once."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.finished = sealed(run)
        self._seals = {phase.index: seal for phase, seal in self.finished}
        self.documents = Documents(run, self.finished)

    def of(
        self,
        key: int,
        *,
        measure: bool = False,
        global_batch_rows: int | Sequence[tuple[int, int]] | None = None,
        training: Training | None = None,
    ) -> dict[str, Any]:
        """Return the history of a document as JSON values.

        Args:
            measure: apply the streaming stages to it anew, for the values of all their rules.
            global_batch_rows: tell the steps of so many rows that see it.
            training: tell the steps of this training instead.

        Returns:
            `key`, `id`, `source`, `origin`, `fate` (kept, dropped, held out, or unfinished),
            `kept`, `stages` in the order of the plan, `now` (where the document is), `text` (the
            beginning of it), `tokens` (see `sightings.token_facts`), and `ledger`, its rows there.
        """
        return _History(self, key).tell(measure, global_batch_rows, training)

    def seal(self, index: int) -> Seal | None:
        """Return the seal of a phase, None while it is not finished."""
        return self._seals.get(index)

    def part(self, index: int, role: str, key: int) -> Part | None:
        """Return the part of a phase that can hold a document."""
        seal = self.seal(index)
        found = [] if seal is None else seal.by_role(role).within(key, key + 1)
        return found[0] if found else None


class _History:
    """One document on its way through the phases."""

    def __init__(self, histories: Histories, key: int) -> None:
        self.all, self.run, self.key = histories, histories.run, key
        self.who = histories.documents.identify(key)
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._held: dict[int, dict[str, Any] | None] = {}
        self.base: dict[str, Any] | None = None
        """The document as the last finished streaming phase before its end left it."""

    def tell(
        self,
        measure: bool,
        global_batch_rows: int | Sequence[tuple[int, int]] | None,
        training: Training | None,
    ) -> dict[str, Any]:
        self.rows = [row for phase, seal in self.all.finished for row in self._ledger(phase, seal)]
        drop = next((row for row in self.rows if row["action"] == "drop"), None)
        stages = self._stages(drop)
        anew = self._measured(stages, drop) if measure else {}
        for one in stages:
            one.update(anew.get(one["stage"], {}))
        is_whole = len(self.all.finished) == len(self.run.plan.phases)
        fate = "kept" if is_whole else "unfinished"
        if drop is not None:
            fate = "held out" if self._aside(drop) else "dropped"
        file = self.who.file
        found = {
            "key": self.key,
            "id": self.who.id,
            "source": self.who.source,
            "origin": {
                "file": file.path if file else None, "name": file.name if file else None,
                "position": self.who.position, "url": self.who.url, "date": self.who.date,
            },
            "fate": fate,
            "kept": drop is None,
            "stages": stages,
            "now": self._now(drop),
            **self._text(drop),
            "extra": None if self.base is None else self._columns(),
            "tokens": None,
            "ledger": [{k: plain(v) for k, v in row.items() if k != "text"} for row in self.rows],
            "notes": self.notes,
        }  # fmt: skip
        if drop is None and any(phase.role == "tokens" for phase in self.run.plan.phases):
            from corpuskit.inspect.why.sightings import token_facts

            found["tokens"] = token_facts(
                self.run.store.address, self.key, global_batch_rows=global_batch_rows,
                training=training,
            )  # fmt: skip
        return found

    def _ledger(self, phase: Phase, seal: Seal) -> list[dict[str, Any]]:
        return [
            {"phase": phase.name, "part": part.path, **row}
            for part in seal.by_role("ledger").within(self.key, self.key + 1)
            for row in self._read(part, "doc_key", without={"text"})
        ]

    def _read(
        self, part: Part, column: str = "key", without: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the rows of this document in a part; what is gone is noted."""
        try:
            return rows_of(self.run.at(part), self.key, column, without)
        except FileNotFoundError:
            self.notes.append(f"{part.path} is gone, so what it says is missing here.")
            return []

    def _stages(self, drop: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Return what every stage said, in the order of the plan."""
        self.base = self._last_document(drop)
        steps = self.run.plan.file.steps
        source = next((s for s in self.run.plan.file.sources if s.label == self.who.source), None)
        found = [] if source is None else [self._stage(source, source.name, is_source=True)]
        found += [self._stage(step, step.label) for step in steps]
        is_over = False
        for one in found:
            if is_over:
                one["said"] = "not reached"
            is_over = is_over or (drop is not None and one["stage"] == drop["stage"])
        configured = [*([] if source is None else [source]), *steps]
        for one, step in zip(found, configured, strict=True):
            if one["said"] not in ("not reached", "not yet", "not run"):
                self._add_values(one, step)
        return found

    def _stage(self, step: Step, label: str, *, is_source: bool = False) -> dict[str, Any]:
        plan = self.run.plan
        phases = [plan.phases[0]] if is_source else [p for p in plan.phases if label in p.labels]
        rows = [row for row in self.rows if row["stage"] == label]
        word: Word = "kept"
        if not phases:
            word = "not run"
        elif any(self.all.seal(phase.index) is None for phase in phases):
            word = "not yet"
        actions = {row["action"] for row in rows}
        if "drop" in actions:
            word = "held out" if getattr(step.stage, "diverts", "") else "dropped"
        elif actions:
            word = "cut" if "cut" in actions else "replaced"
        return {
            "stage": label,
            "kind": registry.kind_of(step.name),
            "phase": phases[-1].name if phases else None,
            "said": word,
            "rows": [self._entry(step, row) for row in rows],
        }

    def _entry(self, step: Step, row: dict[str, Any]) -> dict[str, Any]:
        """Return a ledger row with what it means."""
        spans = [(span["start"], span["end"]) for span in row["spans"] or ()]
        text = self._seen(step, row) if spans else None
        return {
            **{name: row[name] for name in ("rule", "action", "survivor_id")},
            **{name: plain(row[name]) for name in ("value", "threshold")},
            **meaning_of(step.stage, row["rule"]),
            "num_spans": len(spans),
            "spans": spans,
            "excerpts": [] if text is None else excerpts(text, spans),
        }

    def _add_values(self, one: dict[str, Any], step: Step) -> None:
        """Add what the stage measured and appended, as far as it is stored, and duplicates."""
        phases = [p for p in self.run.plan.phases if one["stage"] in p.labels]
        for phase in phases:
            part = self.all.part(phase.index, MEASURES + one["stage"], self.key)
            for row in [] if part is None else self._read(part):
                values = {k: v for k, v in row.items() if k not in FIXED and k != ROW}
                one["measures"] = bounds_of(step.stage, values)
        adds = _fields(self.base or {}, one["stage"])
        if phases and not phases[-1].is_stream:
            adds = self._sidecar(phases[-1]) or adds
            survivor = next((row["survivor_id"] for row in one["rows"]), None)
            one["cluster"] = cluster_facts(
                self.all.documents, self.all.finished, phases[-1], self.key, adds, survivor
            )
        one["annotations"] = adds

    def _sidecar(self, phase: Phase) -> dict[str, Any]:
        """Return the columns that a global stage added to the document."""
        held = self._document(phase.base)
        part = None if phase.base is None else self.all.part(phase.base, "documents", self.key)
        seal = self.all.seal(phase.index)
        if held is None or part is None or seal is None:
            return {}
        found: dict[str, Any] = {}
        for sidecar in seal.by_role("sidecar").of_unit(part.unit):
            found |= _fields(self._sidecar_row(sidecar, held[ROW]), phase.labels[0])
        return found

    def _sidecar_row(self, part: Part, row: int) -> dict[str, Any]:
        try:
            return sidecar_row(self.run.at(part), row)
        except FileNotFoundError:
            self.notes.append(f"{part.path} is gone, so what it says is missing here.")
            return {}

    def _last_document(self, drop: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the document as the last streaming phase that kept it wrote it."""
        names = [phase.name for phase in self.run.plan.phases]
        end = len(names) if drop is None else names.index(drop["phase"])
        if drop is not None and (aside := self._aside(drop)) is not None:
            return next(iter(self._read(aside)), None)
        for index in reversed(range(end)):
            if self.run.plan.phases[index].is_stream and (found := self._document(index)):
                return found
        return None

    def _document(self, index: int | None) -> dict[str, Any] | None:
        """Return the document as a streaming phase wrote it."""
        if index is None:
            return None
        if index not in self._held:
            part = self.all.part(index, "documents", self.key)
            rows = [] if part is None else self._read(part)
            self._held[index] = rows[0] if rows else None
        return self._held[index]

    def _aside(self, drop: dict[str, Any]) -> Part | None:
        """Return the part where a document that was set aside lives on."""
        step = next((s for s in self.run.plan.file.steps if s.label == drop["stage"]), None)
        folder = step.stage.diverts if step and isinstance(step.stage, StreamingStage) else ""
        index = next(p.index for p in self.run.plan.phases if p.name == drop["phase"])
        return self.all.part(index, _DIVERTED + folder, self.key) if folder else None

    def _now(self, drop: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return part and row of the document where it lies now; None if it does not."""
        if drop is not None:
            part = self._aside(drop)
            row = None if part is None or self.base is None else self.base[ROW]
            return None if part is None else {"part": part.path, ROW: row}
        for index in reversed(range(len(self.run.plan.phases))):
            if self.run.plan.phases[index].is_stream and (held := self._document(index)):
                part = self.all.part(index, "documents", self.key)
                return {"part": part.path if part else None, ROW: held[ROW]}
        return None

    def _seen(self, step: Step, row: dict[str, Any]) -> str | None:
        """Return the text that a stage saw, for the spans of a ledger row, if it is stored."""
        phase = next(p for p in self.run.plan.phases if p.name == row["phase"])
        if self.run.plan.settings.ledger.keep_text:
            path = self.run.store.at(row["part"])
            for stored in rows_of(path, self.key, "doc_key"):
                if stored["stage"] == row["stage"] and stored["text"] is not None:
                    return str(stored["text"])
        if phase.base is None or (phase.is_stream and self._may_rewrite_before(phase, step)):
            return None
        held = self._document(phase.base)
        part = self.all.part(phase.base, "documents", self.key)
        if held is None or part is None:
            return None
        data: bytes = held["text"].encode()
        for index in phase.sidecars:
            seal = self.all.seal(index)
            for sidecar in [] if seal is None else seal.by_role("sidecar").of_unit(part.unit):
                for span in reversed(self._sidecar_row(sidecar, held[ROW]).get("cuts") or []):
                    data = data[: span["start"]] + data[span["end"] :]
        return data.decode("utf-8", "replace")

    def _may_rewrite_before(self, phase: Phase, step: Step) -> bool:
        """Return whether a stage before this one in its phase may have changed texts."""
        seal = self.all.seal(phase.index)
        counters = {} if seal is None else seal.counters
        for label in phase.labels[: phase.labels.index(step.label)]:
            name = self.run.plan.step(label).name
            changes = (f"cut/{label}/", f"replace/{label}/")
            if (
                registry.kind_of(name) in ("rewriters", registry.THIRD_PARTY)
                or name == "datatrove"
                or any(one.startswith(changes) for one in counters)
            ):
                return True
        return False

    def _text(self, drop: dict[str, Any] | None) -> dict[str, Any]:
        """Return the beginning of the text: as it was last stored, else what the ledger kept."""
        text, where = None, None
        if self.base is not None:
            text, where = self.base["text"], "documents"
        elif drop is not None:
            rows = rows_of(self.run.store.at(drop["part"]), self.key, "doc_key")
            text = next((row["text"] for row in rows if row["text"] is not None), None)
            where = None if text is None else "ledger"
        size = None if text is None else len(text.encode())
        shown = None if text is None else text[:SHOWN_CHARS]
        return {"text": shown, "text_bytes": size, "text_from": where}

    def _columns(self) -> dict[str, Any]:
        """Return the other columns of the document: those that were declared, and `extra`."""
        assert self.base is not None, "only asked of documents that are stored"
        usual = {"key", "id", "text", "source", "origin", ROW}
        found = {k: plain(v) for k, v in self.base.items() if k not in usual and "." not in k}
        return {name: value for name, value in found.items() if value is not None}

    def _measured(
        self, stages: list[dict[str, Any]], drop: dict[str, Any] | None
    ) -> dict[str, dict[str, Any]]:
        """Return what the streaming stages say when they are applied anew, by label."""
        from corpuskit.engine.status import outdated
        from corpuskit.inspect.why.afresh import Afresh

        for phase in outdated(self.run, self.all.finished):
            self.notes.append(
                f"phase {phase.name} was made with other parameters, files or inputs than the plan "
                "now has: what is measured anew is what the new ones say."
            )
        afresh = Afresh(self.all, self.who)
        found: dict[str, dict[str, Any]] = {}
        for phase in self.run.plan.phases:
            if drop is not None and phase.index > self._index(drop["phase"]):
                break
            if phase.is_stream and phase.labels:
                found |= afresh.phase(phase)
        caution = afresh.caution()
        self.notes += [caution] if caution else []
        return found

    def _index(self, name: str) -> int:
        return next(phase.index for phase in self.run.plan.phases if phase.name == name)


def _fields(row: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return the annotations of one stage among the columns of a row."""
    prefix = f"{label}."
    return {k.removeprefix(prefix): plain(v) for k, v in row.items() if k.startswith(prefix)}
