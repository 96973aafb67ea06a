"""Checkpoints in moto's server, written by us and read by boto3, and the other way round.

s3_check.py S3_STATE CKPT: the programs.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "bucket"
KEY, SECRET = "TESTKEY", "a/secret+key"


class Check:
    def __init__(self, s3_state, ckpt, endpoint, folder):
        self.s3_state, self.ckpt = s3_state, ckpt
        self.endpoint = endpoint
        self.folder = pathlib.Path(folder)
        self.environment = dict(os.environ, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
        self.s3 = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        self.s3.create_bucket(Bucket=BUCKET)

    def run(self, *command, fails_with=None):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        text = done.stdout + done.stderr
        if fails_with is None:
            assert done.returncode == 0, (command, text)
        else:
            assert done.returncode != 0 and fails_with in text, (command, text)
        return text

    def keys(self, prefix):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def boto3_reads_what_we_wrote(self):
        name = f"boto3:s3://{BUCKET}.{self.endpoint.removeprefix('http://')}/ours"
        self.run(self.s3_state, "save", name)
        keys = self.keys("")
        assert "ours/step-00000007/manifest.pb" in keys, keys
        assert all(key.startswith("ours/step-00000007/") for key in keys), keys
        assert "Uploads" not in self.s3.list_multipart_uploads(Bucket=BUCKET)
        for key in keys:
            path = self.folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            self.s3.download_file(BUCKET, key, str(path))
        (data,) = (self.folder / "ours").glob("*/*.safetensors")
        raw = data.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        sizes = [e["data_offsets"][1] for name, e in header.items() if name != "__metadata__"]
        assert max(sizes) == len(raw) - 8 - length == 40_000_000, header
        self.run(self.s3_state, "load", str(self.folder / "ours"))
        self.run(self.s3_state, "load", f"s3://{BUCKET}/ours", self.endpoint)
        self.run(self.s3_state, "save", name, fails_with="never overwritten")

    def we_read_what_boto3_wrote(self):
        for path in (self.folder / "ours").glob("*/*"):
            key = f"theirs/{path.parent.name}/{path.name}"
            self.s3.upload_file(str(path), BUCKET, key)  # large files in parts
        name, endpoint = f"s3://{BUCKET}/theirs", f"--s3-endpoint={self.endpoint}"
        self.run(self.s3_state, "load", name, self.endpoint)
        assert "good" in self.run(self.ckpt, "verify", "--digests", name, endpoint)
        assert "step-00000007" in self.run(self.ckpt, "ls", name, endpoint)
        self.run(self.ckpt, "diff", "--data", name, f"s3://{BUCKET}/ours", endpoint)
        self.run(self.ckpt, "reshard", name, f"s3://{BUCKET}/cut", "--topology=tp2", endpoint)
        self.run(self.s3_state, "load", f"s3://{BUCKET}/cut", self.endpoint)

    def errors_are_sentences(self):
        endpoint = f"--s3-endpoint={self.endpoint}"
        self.run(self.ckpt, "ls", "s3://nobucket/a", endpoint, fails_with="no bucket nobucket")
        self.run(self.ckpt, "verify", f"s3://{BUCKET}/none", endpoint, fails_with="neither")


def main():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        with tempfile.TemporaryDirectory() as folder:
            check = Check(sys.argv[1], sys.argv[2], f"http://{host}:{port}", folder)
            check.boto3_reads_what_we_wrote()
            check.we_read_what_boto3_wrote()
            check.errors_are_sentences()
    finally:
        server.stop()
    print("boto3 reads what we write, and we read what boto3 writes")


if __name__ == "__main__":
    main()
