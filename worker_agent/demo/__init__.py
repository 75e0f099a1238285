"""The demo: trains a small decoder on real text, plainly packed, planned and by changing strategies, and reports it."""
