"""Coefficients that follow what ranks measure: pure, from a state and measured replicas to the next state.

`observe` takes in what one report of times says, `decide` whether plans should be made with other coefficients or with
other pools of GPUs from now on, and `split` which pools and strategies these are.
"""
