"""What a plan did about duplicates, benchmarks and personal data, and what it left undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.engine.config import Step

EXACT, NEAR, PARTS = "exact_dedup", "minhash_dedup", ("substring_dedup", "line_dedup")
HARMFUL = ("toxicity", "bad_words", "url_filter")
EMBEDDED = "embedded"


def find_limits(
    steps: Sequence[Step], unlicensed: Sequence[str], accepted: Sequence[str]
) -> list[str]:
    """Return what a reader of the dataset should know, from the plan alone.

    Args:
        unlicensed: sources whose licence nobody declared.
        accepted: phases that were kept although their code had changed.
    """
    names = {step.name for step in steps}
    found = [*_languages(steps), *_duplicates(names)]
    if "decontaminate" not in names:
        found.append(
            "No stage looked for benchmark items: scores of models trained on it may be too high."
        )
    found.append(
        "Only personal data that has a form (addresses, numbers, keys) was looked for; names are "
        "still there, and some of what has a form is missed."
        if "pii" in names
        else "No stage looked for personal data."
    )
    if not names & set(HARMFUL):
        found.append("No stage looked for toxic or adult content.")
    found += _sampling(steps)
    if unlicensed:
        found.append(
            f"Nobody declared the licence of {', '.join(unlicensed)}. No stage looks at licences: "
            "who uses the texts has to find out."
        )
    if accepted:
        found.append(
            f"Phases {', '.join(accepted)} were made by code that has changed since "
            "(`--accept-code-change`): running again may decide otherwise."
        )
    return found


def duplicates_said(
    steps: Sequence[Step], dropped: Mapping[str, int], changed: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Return what was done about duplicates, a sentence per stage.

    Args:
        dropped: label -> documents.
        changed: label -> rule -> documents that lost some of their text.
    """
    found = []
    for step in steps:
        stage = step.stage
        if step.name == EXACT:
            what = "Documents with the same text"
        elif step.name == NEAR:
            least = getattr(stage, "verify", None)
            sure = "" if least is None else f", checked to share {least:.0%} of them"
            what = (
                f"Near duplicates, by MinHash over {getattr(stage, 'ngram', '?')}-word shingles in "
                f"{getattr(stage, 'bands', '?')} bands of {getattr(stage, 'rows', '?')} "
                f"rows{sure},"
            )
        elif step.name in PARTS:
            what = "Repeated " + ("passages" if step.name == PARTS[0] else "lines")
        else:
            continue
        found.append(f"{what} were {_action(step)}: {_came(step, dropped, changed)}.")
    return found or ["Duplicates were not looked for."]


def benchmarks_said(
    steps: Sequence[Step], dropped: Mapping[str, int], changed: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Return what was done about benchmark items."""
    found = []
    for step in steps:
        if step.name == "decontaminate":
            given = getattr(step.stage, "benchmarks", ())
            files = [f"{k} ({v})" for k, v in given.items()] if isinstance(given, dict) else given
            found.append(
                f"Items of {', '.join(files)} were looked for; what was found was "
                f"{_action(step)}: {_came(step, dropped, changed)}."
            )
    return found or ["Benchmark items were not looked for."]


def personal_said(
    steps: Sequence[Step], dropped: Mapping[str, int], changed: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Return what was done about personal data.

    Args:
        changed: label -> kind -> documents in which it was found.
    """
    found = []
    for step in steps:
        if step.name == "pii":
            counts = changed.get(step.label, {})
            said = ", ".join(f"{kind} in {num:,}" for kind, num in counts.items()) or "nothing"
            kinds = ", ".join(getattr(step.stage, "kinds", ()))
            lost = dropped.get(step.label, 0)
            also = f", and {lost:,} are gone for it" if lost else ""
            action = {"replace": "replaced", "mask": "masked", "tag": "tagged", "drop": "dropped"}
            done = action.get(getattr(step.stage, "action", ""), "replaced")
            found.append(f"Looked for {kinds}. Found and {done}: {said} documents{also}.")
    return found or ["Personal data was not looked for."]


def _came(step: Step, dropped: Mapping[str, int], changed: Mapping[str, Mapping[str, int]]) -> str:
    """Return what came of a stage that drops or cuts."""
    lost, cut = dropped.get(step.label, 0), sum(changed.get(step.label, {}).values())
    gone = f"{lost:,} document{'s' * (lost != 1)} gone"
    if not cut:
        return gone
    also = f"; {gone}" if lost else ""
    return f"{cut:,} document{'s' * (cut != 1)} shortened{also}"


def _action(step: Step) -> str:
    words = {"drop": "dropped", "cut": "cut out", "annotate": "noted, not removed"}
    return words.get(getattr(step.stage, "action", "drop"), "dropped")


def _languages(steps: Sequence[Step]) -> list[str]:
    found = []
    for step in steps:
        if step.name == "language":
            model = getattr(step.stage, "model", EMBEDDED)
            named = "corpuskit's embedded model" if model == EMBEDDED else str(model)
            found.append(
                f"Languages were told apart by a fastText model ({named}); it errs on short, mixed "
                "and formulaic texts, and more often in languages that resemble others."
            )
    return found or ["Languages were not looked at."]


def _duplicates(names: set[str]) -> list[str]:
    if NEAR in names:
        return []
    if EXACT in names:
        return ["Only exact copies were looked for: near duplicates are still there."]
    if names & set(PARTS):
        return ["Documents as a whole were not compared: duplicates may still be there."]
    return ["Duplicates were not looked for: they are still there."]


def _sampling(steps: Sequence[Step]) -> list[str]:
    """Return what is not there by choice or by chance."""
    found = []
    for step in steps:
        if step.name == "holdout":
            ratio = getattr(step.stage, "ratio", 0.0)
            share = f"{100 * ratio:.3g} %"
            found.append(f"About {share} of the documents were set aside, by a hash of their text.")
        elif step.name == "percentile" and getattr(step.stage, "keep_top", None) is not None:
            found.append(
                f"Only the best {100 * getattr(step.stage, 'keep_top', 1.0):.3g} % by "
                f"{getattr(step.stage, 'column', 'a score')} was kept: what the score is blind to "
                "is rarer than in the sources."
            )
        elif step.name == "upsample":
            found.append("Some documents count several times, others not at all (upsample).")
        elif step.name in {"quality", "toxicity"}:
            model = getattr(step.stage, "model", "")
            found.append(f"Scores of {step.label} come from a classifier ({model}) and its biases.")
    return found
