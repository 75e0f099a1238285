"""One module a revision, in order; none of them is ever changed after a release."""
