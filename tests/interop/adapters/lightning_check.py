"""A Trainer of Lightning that is killed and resumed, with checkpoints of tessera_ckpt.

  lightning_check.py
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import lightning
import tessera_ckpt
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from tessera_ckpt.lightning import TesseraCheckpointIO

EPOCHS, STEPS = 6, 5


class Model(lightning.LightningModule):
    def __init__(self, width=16, betas=(0.9, 0.95)):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.1),
                                       torch.nn.Linear(width, 1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bfloat16))

    def training_step(self, batch, index):
        torch.manual_seed(1000 * self.current_epoch + index)  # the same dropout after a resume
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.seen += 1
        self.log("loss", loss, on_step=True, on_epoch=True)
        print(f"loss {self.global_step} {loss.item().hex()}", flush=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, betas=self.hparams.betas)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class KillAt(Callback):
    """Kills the process in the middle of an epoch."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(folder, io_name, kill_at=None, ckpt_path=None, epochs=EPOCHS):
    torch.manual_seed(0)
    x = torch.randn(8 * STEPS, 4)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    io = {"sync": TesseraCheckpointIO, "async": lambda: AsyncCheckpointIO(TesseraCheckpointIO())}
    callbacks = [ModelCheckpoint(folder, monitor="loss", save_top_k=2, save_last=True),
                 EarlyStopping("loss", patience=100)]
    callbacks += [KillAt(kill_at)] if kill_at else []
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", plugins=[io[io_name]()], callbacks=callbacks,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder)
    trainer.fit(Model(), data, ckpt_path=ckpt_path)
    return trainer


def run(*arguments):
    """The losses that a process prints, by step, and its exit code."""
    done = subprocess.run([sys.executable, "-W", "ignore", __file__, *map(str, arguments)],
                          stdout=subprocess.PIPE, text=True, check=False, timeout=300)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("loss ")]
    return {int(step): loss for _, step, loss in lines}, done.returncode


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        whole, code = run("fit", f"{folder}/whole", "sync")
        assert code == 0 and len(whole) == EPOCHS * STEPS
        place = pathlib.Path(folder) / "killed"
        first, code = run("fit", place, "sync", 18)
        assert code == -signal.SIGKILL, code
        rest, code = run("fit", place, "sync", "", place / "last.ckpt")
        assert code == 0 and min(rest) == 15 and max(rest) == EPOCHS * STEPS - 1, rest
        assert {**first, **rest} == whole  # bit for bit
        # The paths are Lightning's: two of the best, and the last.
        paths = sorted(path.name for path in place.iterdir())
        assert len(paths) == 3 and paths[-1] == "last.ckpt", paths
        for path in paths:
            assert len(tessera_ckpt.list_checkpoints(place / path)) == 1, path
            assert tessera_ckpt.verify(place / path, digests=True)
        last = tessera_ckpt.load(place / "last.ckpt")
        assert last["global_step"] == tessera_ckpt.latest(place / "last.ckpt").step > 15
        assert last["hyper_parameters"] == {"width": 16, "betas": (0.9, 0.95)}
        assert last["state_dict"]["seen"].dtype == torch.bfloat16
        assert sorted(last["optimizer_states"][0]["state"]) == [0, 1, 2, 3]
        print(f"killed at step 18, resumed at 15: {len(whole)} losses equal; {paths}")
        # Training that goes back overwrites what is there.
        path = f"{folder}/whole/last.ckpt"
        before = tessera_ckpt.latest(path).step
        trainer = fit(f"{folder}/again", "async", epochs=2)
        trainer.save_checkpoint(path)
        trainer.strategy.teardown()  # waits for what is saved in the background
        assert tessera_ckpt.load(path)["global_step"] == 10
        assert [found.step for found in tessera_ckpt.list_checkpoints(path)] == [before + 1]
        # A file of Lightning's own is loaded, too.
        torch.save(tessera_ckpt.load(path), f"{folder}/torch.ckpt")
        assert TesseraCheckpointIO().load_checkpoint(f"{folder}/torch.ckpt")["epoch"] == 2
        model = Model(**tessera_ckpt.load(path)["hyper_parameters"])
        model.load_state_dict(tessera_ckpt.load(path)["state_dict"])
        try:
            TesseraCheckpointIO().save_checkpoint({"hyper_parameters": {"x": object()}}, path)
        except tessera_ckpt.UnimplementedError as error:
            assert "hyper_parameters.x" in str(error), error
        else:
            raise AssertionError("an object was saved")
        try:
            trainer.fit(Model(), ckpt_path=f"{folder}/none.ckpt", train_dataloaders=[])
        except FileNotFoundError as error:
            assert "none.ckpt" in str(error), error
        else:
            raise AssertionError("nothing was loaded")
    print(f"lightning {lightning.__version__}, torch {torch.__version__}: all good")


if __name__ == "__main__":
    if sys.argv[1:2] == ["fit"]:
        _, _, place, io_name, *rest = sys.argv
        fit(place, io_name, int(rest[0]) if rest and rest[0] else None,
            rest[1] if len(rest) > 1 else None)
    else:
        main()
