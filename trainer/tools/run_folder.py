"""What the folder of a run tells: its settings, its records and their digests, its checkpoints."""

import errno
import hashlib
import json
import math
import os
import re
import stat
import struct
import subprocess

# The numbers of checkpoint/include/manifest.proto.
ROLES = {"WEIGHT": 1, "MASTER_WEIGHT": 2, "OPTIMIZER_STATE": 3, "BUFFER": 4}
DTYPES = {"F64": 1, "F32": 2, "F16": 3, "BF16": 4, "I64": 5, "I32": 6, "I16": 7, "I8": 8, "U8": 9,
          "BOOL": 10, "U16": 11, "U32": 12, "U64": 13}


class Refused(Exception):
    """Nothing can be compared."""


class NotProven(Exception):
    """A step does not follow."""


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def is_remote(place):
    """Whether it names an object store rather than a folder."""
    return re.match(r"\w+:", place)


def bits(number):
    return "none" if number is None or not math.isfinite(number) else struct.pack(
        ">d", number).hex()


def link(previous, record):
    """The digest of a step, as trainer/state/ledger.h describes it."""
    loss = struct.unpack(">d", bytes.fromhex(record["loss_bits"]))[0]
    return sha256(f"tessera ledger 1\n{previous}\n{record['settings']}\n{record['step']} "
                  f"{bits(loss)} {bits(record['grad_norm'])} {bits(record['lr'])} "
                  f"{record['first_sample']} {record['consumed_samples']}\n")


def state_digest(tensors):
    """The digest of a saved state, likewise, of what `ckpt inspect` says of its tensors."""
    text = "tessera state 1\n"
    for tensor in sorted(tensors, key=lambda tensor: tensor["name"].encode()):
        name, alias = tensor["name"], tensor.get("alias_of", "")
        shape = ",".join(map(str, tensor["shape"]))
        text += (f"{len(name.encode())} {name} {ROLES[tensor['role']]} {DTYPES[tensor['dtype']]} "
                 f"[{shape}] {len(alias.encode())} {alias} {tensor.get('digest', '0' * 32)}\n")
    return sha256(text)


def open_file(path):
    """Opens a regular file; what is none is not waited for, but an OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_records(path, kind):
    """The records of a kind by step. An incomplete last line is that of a process that died."""
    records = {}
    try:
        with open_file(path) as file:
            text = file.read()
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            if record["kind"] == kind:
                earlier = records.setdefault(record["step"], record)
                records[record["step"]] = record
        except (ValueError, KeyError, TypeError) as error:
            raise NotProven(f"{path}: line {number} is no record") from error
        if record["kind"] == kind == "save" and earlier.get("state") != record.get("state"):
            raise NotProven(f"step {record['step']}: line {number} of {path} has another state of "
                            "it than a line before: the run went on from a checkpoint that had "
                            "changed since it was saved")
    return records


class Run:
    """What the folder of a run tells."""

    def __init__(self, folder, ckpt, flags):
        self.folder, self.program = folder, ckpt
        self.config = folder / "config.textproto"
        try:
            with open_file(self.config) as file:
                self.settings = file.read().decode()
        except OSError as error:
            raise Refused(f"cannot read {self.config}: {error.strerror}") from error
        if not re.search(r"^\s*numerics: EXACT$", self.settings, re.MULTILINE):
            raise Refused(f"{folder} is a run in FAST numerics, whose bits depend on the topology: "
                          "only EXACT ones can be audited")
        # In this order: a run that goes on records a step before the checkpoint that it saves.
        saves = folder / "saves.jsonl"
        self.saves = read_records(saves, "save") if saves.exists() else {}
        self.steps = read_records(folder / "metrics.jsonl", "step")
        if not any("ledger" in record for record in self.steps.values()):
            raise Refused(f"{folder}/metrics.jsonl holds no ledger")
        # The step that the run begins after: that of a checkpoint elsewhere, or 0.
        self.origin = min(self.steps) - 1
        self.flags = flags
        endpoint = self.stated("s3_endpoint")
        self.endpoint = [f"--s3-endpoint={endpoint}"] if endpoint else []
        self.damaged = {}
        self.checked = {}
        self.partial_resumes = []  # that checkpoints tell of
        self.checkpoints = self.find_checkpoints()

    def setting(self, name):
        found = re.search(rf'^\s*{name}: "(.*)"$', self.settings, re.MULTILINE)
        return found.group(1) if found else ""

    def stated(self, name):
        """The setting of the audit's flags or, where none states it, of the run."""
        flag = f"--{name.replace('_', '-')}="
        values = [word.removeprefix(flag) for word in self.flags if word.startswith(flag)]
        return values[-1] if values else self.setting(name)

    def ckpt(self, *words):
        """What the command says as JSON, and its exit code: 0, or 1 for damage."""
        result = subprocess.run([self.program, *words, "--json", *self.endpoint], check=False,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors="replace")
        if result.returncode not in (0, 1):
            raise Refused(result.stderr.strip())
        return json.loads(result.stdout), result.returncode

    def find_checkpoints(self):
        """Names of checkpoints by step."""
        place = str(self.folder / "checkpoints")
        if not os.path.isdir(place) and self.setting("save"):
            place = self.setting("save")
        found = {}
        # A permanent checkpoint goes before a rolling one of its step.
        for folder in (place, place + "/rolling-0", place + "/rolling-1"):
            if not is_remote(place) and not os.path.isdir(folder):
                continue
            for entry in self.ckpt("ls", folder)[0]:
                step = entry.get("step")
                if step in found or not entry["directory"].startswith("step-"):
                    continue
                found[step] = folder + "/" + entry["directory"]
                if "error" in entry:
                    self.damaged[step] = entry["error"]
        return found

    def check_checkpoint(self, step):
        """The checkpoint of a step is whole, and holds what the records say. Returns what its
        record is; None where a run that goes on has deleted it meanwhile."""
        if step in self.checked:
            return self.checked[step]
        try:
            self.checked[step] = self.read_checkpoint(step)
        except (NotProven, Refused):
            if not self.is_gone(self.checkpoints[step]):
                raise
            del self.checkpoints[step]
            return None
        return self.checked[step]

    def is_gone(self, checkpoint):
        return not is_remote(checkpoint) and not os.path.exists(checkpoint + "/manifest.pb")

    def read_checkpoint(self, step):
        if step in self.damaged:
            raise NotProven(f"step {step}: its checkpoint is damaged: {self.damaged[step]}")
        found, damaged = self.ckpt("inspect", self.checkpoints[step])
        if damaged:
            raise NotProven(f"step {step}: its checkpoint is damaged: {found['error']}")
        resumes = found["extra"].get("partial_resumes", "")
        new = [part for part in resumes.split("; ") if part and part not in self.partial_resumes]
        if new:
            self.partial_resumes += new
            print("the run left parts of a checkpoint out when it resumed: " + "; ".join(new),
                  flush=True)
        ledger, state = found["extra"].get("ledger", ""), state_digest(found["tensors"])
        if step in self.steps and ledger != self.steps[step].get("ledger", ""):
            raise NotProven(f"step {step}: its checkpoint was saved by a run with another ledger")
        if state != self.saves.get(step, {}).get("state", state):
            raise NotProven(f"step {step}: its checkpoint does not hold the state that saves.jsonl "
                            f"has recorded: {self.checkpoints[step]}")
        report, damaged = self.ckpt("verify", self.checkpoints[step], "--digests")
        if damaged:
            # The place in a file says more than the digest in the manifest that does not fit.
            place = min(report["damage"], key=lambda damage: damage["file"] == "manifest.pb")
            tensor = f", tensor {place['tensor']}" if place.get("tensor") else ""
            raise NotProven(f"step {step}: its checkpoint is damaged: {self.checkpoints[step]}/"
                            f"{place['file']} at offset {place['offset']}{tensor}: "
                            f"{place['message']}")
        return {"step": step, "ledger": ledger, "state": state}

    def check_chain(self):
        """Every line's digest is that of its numbers and of the line before. Returns the steps at
        which a chain begins."""
        begins = []
        previous = ""
        last = None
        for step, record in sorted(self.steps.items()):
            if last != step - 1 and step - 1 in self.saves:
                # The run has gone on here from a checkpoint of another folder.
                previous, last = self.saves[step - 1].get("ledger", ""), step - 1
            if "ledger" not in record:
                previous, last = "", step
                continue
            try:
                follows = last == step - 1 and link(previous, record) == record["ledger"]
                if not follows and link("", record) == record["ledger"]:
                    begins.append(step)
                elif not follows and last in (step - 1, None):
                    raise NotProven(f"step {step}: its line in metrics.jsonl is not the one that "
                                    "its digest was computed of")
                elif not follows:
                    raise NotProven(f"step {last + 1}: it has no line in metrics.jsonl")
            except (KeyError, TypeError, ValueError, struct.error) as error:
                raise NotProven(f"step {step}: its line in metrics.jsonl is damaged") from error
            previous, last = record["ledger"], step
        if not begins or min(self.steps) not in begins and "ledger" in self.steps[min(self.steps)]:
            begins.insert(0, min(self.steps))
        for step, save in sorted(self.saves.items()):
            bound = sha256(f"tessera save 1\n{step}\n{save.get('ledger')}\n{save.get('state')}\n")
            at_step = self.steps.get(step, save)
            if bound != save.get("save") or at_step.get("ledger") != save["ledger"]:
                raise NotProven(f"step {step}: its line in saves.jsonl does not fit the ledger")
        return begins
