"""A Trainer of transformers that is killed and resumed, with checkpoints of tessera_ckpt.

  transformers_check.py
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import tessera_ckpt
import torch
import transformers
from tessera_ckpt.transformers import TesseraCheckpoints

STEPS = 12


class Trainer(TesseraCheckpoints, transformers.Trainer):
    pass


class Watch(transformers.TrainerCallback):
    """Prints the losses, and kills the process at a step."""

    def __init__(self, kill_at):
        self.kill_at = kill_at

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            print("loss", state.global_step, float(logs["loss"]).hex(),
                  float(logs["grad_norm"]).hex(), flush=True)

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def make(folder, kill_at=-1, layers=2, **more):
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_head=2, n_embd=32, n_positions=16,
                                     vocab_size=61, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)  # with dropout: the generators count
    ids = torch.randint(0, 61, (24, 16))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=4, save_steps=3, logging_steps=1,
        save_total_limit=2, use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=1e-2,
        warmup_steps=2, **more)
    return Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4],
                   callbacks=[Watch(kill_at)])


def run(*arguments):
    done = subprocess.run([sys.executable, "-W", "ignore", __file__, *map(str, arguments)],
                          stdout=subprocess.PIPE, text=True, check=False, timeout=300)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("loss ")]
    return {int(step): numbers for _, step, *numbers in lines}, done.returncode


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        whole, code = run("fit", f"{folder}/whole", -1, "")
        assert code == 0 and len(whole) == STEPS
        place = pathlib.Path(folder) / "killed"
        first, code = run("fit", place, 8, "")
        assert code == -signal.SIGKILL, code
        (place / "checkpoint-7").mkdir()  # as of a save that did not finish
        rest, code = run("fit", place, -1, "resume")
        assert code == 0 and min(rest) == 7 and max(rest) == STEPS, rest
        assert {**first, **rest} == whole  # losses and gradients, bit for bit
        shutil.rmtree(place / "checkpoint-7", ignore_errors=True)
        names = sorted(path.name for path in place.iterdir())
        assert names == ["checkpoint-12", "checkpoint-9"], names
        files = sorted(path.name for path in (place / "checkpoint-12").iterdir())
        assert files == ["config.json", "step-00000012", "trainer_state.json"], files
        assert tessera_ckpt.verify(place / "checkpoint-12", digests=True)
        tensors = tessera_ckpt.open(place / "checkpoint-12").tensors
        assert tensors["model.lm_head.weight"].alias_of == "model.transformer.wte.weight" or (
            tensors["model.transformer.wte.weight"].alias_of == "model.lm_head.weight")
        print(f"killed at step 8, resumed after 6: {len(whole)} losses equal; {files}")

        trainer = make(f"{folder}/best", eval_strategy="steps", eval_steps=3,
                       load_best_model_at_end=True,
                       greater_is_better=True)  # so that it is not the last one
        trainer.train()
        assert not trainer.state.best_model_checkpoint.endswith("-12")
        best = tessera_ckpt.load(trainer.state.best_model_checkpoint)["model"]
        for name, value in trainer.model.state_dict().items():
            assert torch.equal(value, best[name]), name
        weights = tessera_ckpt.load(place / "checkpoint-12")["model"]
        found = transformers.GPT2LMHeadModel.from_pretrained(
            None, config=trainer.model.config, state_dict=weights).state_dict()
        assert all(torch.equal(found[name], value) for name, value in weights.items())
        trainer.save_model(f"{folder}/final")
        again = transformers.GPT2LMHeadModel.from_pretrained(f"{folder}/final")
        assert torch.equal(again.transformer.h[0].mlp.c_fc.weight,
                           best["transformer.h.0.mlp.c_fc.weight"])
        print(f"the best model is loaded: {pathlib.Path(trainer.state.best_model_checkpoint).name}")
        # What the program does not want is no part of its training: it is refused by name.
        smaller = make(f"{folder}/smaller", layers=1)
        without = make(f"{folder}/without")
        without.create_optimizer_and_scheduler(STEPS)
        del without.lr_scheduler.base_lrs
        checkpoint = str(place / "checkpoint-12")
        for call, name in (
                (lambda: smaller.train(resume_from_checkpoint=checkpoint),
                 "model.transformer.h.1.attn.c_attn.bias"),
                (lambda: without._load_optimizer_and_scheduler(checkpoint),
                 "scheduler.base_lrs")):
            try:
                call()
            except tessera_ckpt.MismatchError as error:
                assert name in str(error), error
            else:
                raise AssertionError(f"{name} was left out")
        try:
            make(f"{folder}/none").train(resume_from_checkpoint=True)
        except tessera_ckpt.NotFoundError as error:
            assert "no complete checkpoint" in str(error), error
        else:
            raise AssertionError("nothing was resumed")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: all good")


if __name__ == "__main__":
    if sys.argv[1:2] == ["fit"]:
        make(sys.argv[2], int(sys.argv[3])).train(resume_from_checkpoint=bool(sys.argv[4]) or None)
    else:
        main()
