"""Checkpoints of the Trainer of Hugging Face's transformers as Tessera's:

    import transformers
    from tessera_ckpt.transformers import TesseraCheckpoints

    class Trainer(TesseraCheckpoints, transformers.Trainer):
        pass

    Trainer(model, args, ...).train(resume_from_checkpoint=True)

It goes before any class that derives from transformers' Trainer. Where that would write weights,
the optimizer, the scheduler and the generators into files of "checkpoint-500", there is one
checkpoint of Tessera in that folder, beside the Trainer's own state and the model's configuration.
It loads at any number of processes. save_model() writes what it always does, and from_pretrained()
takes the weights of a checkpoint as tessera_ckpt.load() returns them:

    weights = tessera_ckpt.load(".../checkpoint-500")["model"]
    model = AutoModelForCausalLM.from_pretrained(None, config=config, state_dict=weights)
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from . import _checkpoints
from ._library import NotFoundError, UnimplementedError
from ._replace import are_processes_of, save_in_place
from ._torch_state import (random_states, set_random_states, set_training_state,
                           training_state)

if TYPE_CHECKING:
    _Trainer = Any
else:
    _Trainer = object

_PROCESSES = "transformers.processes"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class TesseraCheckpoints(_Trainer):
    """A Trainer's checkpoints: see above."""

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's. True resumes from the newest checkpoint that is complete."""
        if self.is_deepspeed_enabled:
            raise UnimplementedError("DeepSpeed has checkpoints of its own")
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self._newest_checkpoint()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _newest_checkpoint(self) -> str:
        folder = self.args.output_dir
        found = [name for name in (os.listdir(folder) if os.path.isdir(folder) else [])
                 if _CHECKPOINT.fullmatch(name)]
        for name in sorted(found, key=lambda name: -int(name.split("-")[1])):
            path = os.path.join(folder, name)
            if os.path.isfile(os.path.join(path, "trainer_state.json")) and (
                    _checkpoints.latest(path) is not None):
                return path
        raise NotFoundError(f"no complete checkpoint in {folder}")

    def save_model(self, output_dir: Optional[str] = None, _internal_call: bool = False) -> None:
        checkpoint = _CHECKPOINT.fullmatch(os.path.basename(output_dir or ""))
        if not _internal_call or checkpoint is None or self.args.save_only_model:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            beside: List[Any] = [getattr(self.model, "config", None), self.processing_class]
            for each in beside:
                if hasattr(each, "save_pretrained"):
                    each.save_pretrained(output_dir)

    def _whole_state(self) -> Dict[str, Any]:
        scaler = getattr(self.accelerator, "scaler", None)
        return {**training_state([self.model_wrapped], [self._plain_optimizer()]),
                "scheduler": self.lr_scheduler.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict()}

    def _plain_optimizer(self) -> Any:
        return getattr(self.optimizer, "optimizer", self.optimizer)  # inside accelerate's

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save_in_place(output_dir, self.state.global_step,
                      {**self._whole_state(), "random": random_states()}, program="transformers",
                      per_rank=["random"],
                      entries={_PROCESSES: json.dumps(self.args.world_size).encode()})

    def _load_optimizer_and_scheduler(self, checkpoint: Optional[str]) -> None:
        if checkpoint is None:
            return
        state = self._whole_state()
        # The generators come later.
        _checkpoints.load(checkpoint, state, allow_unexpected=["random"])
        set_training_state([self.model_wrapped], [self._plain_optimizer()], state)
        self.lr_scheduler.load_state_dict(state["scheduler"])
        if state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def _save_scaler(self, output_dir: str) -> None:
        """It is saved with the optimizer."""

    def _load_scaler(self, checkpoint: Optional[str]) -> None:
        """It is loaded with the optimizer."""

    def _save_rng_state(self, output_dir: str) -> None:
        """They are saved with the optimizer."""

    def _load_rng_state(self, checkpoint: Optional[str]) -> None:
        if checkpoint is None or not are_processes_of(checkpoint, _PROCESSES,
                                                      self.args.world_size):
            return
        state = {"random": random_states()}
        _checkpoints.load(checkpoint, state, allow_unexpected=True)
        set_random_states(state["random"])

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if _checkpoints.latest(resume_from_checkpoint) is None:  # of save_only_model, or another's
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        self._load_weights(resume_from_checkpoint, self.model if model is None else model)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if _checkpoints.latest(best) is None:
            super()._load_best_model()
            return
        self._load_weights(best, self.model_wrapped)

    @staticmethod
    def _load_weights(checkpoint: str, model: Any) -> None:
        weights = get_model_state_dict(model)
        _checkpoints.load(checkpoint, {"model": weights},
                          allow_unexpected=["optimizer", "scheduler", "scaler", "random"])
        set_model_state_dict(model, weights)
