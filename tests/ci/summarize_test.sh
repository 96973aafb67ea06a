#!/bin/sh
exec python3 -B tests/ci/summarize_test.py
