"""lm-evaluation-harness on local files of published tasks: MODEL FOLDER DTYPE -> FOLDER/DTYPE.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lm_eval
import lm_eval.evaluator
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import load_yaml_config

FILES = {
    "arc_easy": "arc/arc_easy.yaml",
    "piqa": "piqa/piqa.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "mmlu": "mmlu/default/_default_template_yaml",
}


def main() -> None:
    model, folder, dtype = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    tasks = []
    for name, file in FILES.items():
        config = load_yaml_config(str(Path(lm_eval.__file__).parent / "tasks" / file), mode="full")
        config |= {
            "task": f"local_{name}", "dataset_path": "json", "dataset_name": None,
            "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
        }  # fmt: skip
        for key in ("training_split", "validation_split", "fewshot_split", "fewshot_config", "tag"):
            config.pop(key, None)
        if name == "mmlu":  # what each subject's file says, without a subject
            config["description"] = (
                "The following are multiple choice questions (with answers).\n\n"
            )
        tasks.append(config)
    # Its table wants aliases, which tasks that come as dicts don't have.
    lm_eval.evaluator.prepare_print_tasks = lambda *_: ({}, {})
    evaluated = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, dtype=dtype, device="cpu", batch_size=8),
        tasks=tasks, num_fewshot=0, bootstrap_iters=0, log_samples=True,
    )  # fmt: skip
    found = {}
    for name in FILES:
        samples = sorted(evaluated["samples"][f"local_{name}"], key=lambda sample: sample["doc_id"])
        nats = [[float(answer[0]) for answer in sample["filtered_resps"]] for sample in samples]
        measures = [key for key in ("acc", "acc_norm") if key in samples[0]]
        shares = {key: sum(sample[key] for sample in samples) / len(samples) for key in measures}
        found[name] = {"nats": nats, **shares}
    (folder / f"{dtype}.json").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
