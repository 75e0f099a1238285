"""The demo: trains a small decoder on real text, plainly packed and planned, and reports what planning changed."""
