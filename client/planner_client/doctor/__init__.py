"""What `hydraulis doctor` looks at: whether this machine, and the service it is to talk to, are fit for work.

Every installed part of the product brings its own checks as entry points of the group ``hydraulis.checks``, as it
brings its commands: functions without arguments that return `planner_client.doctor.finding.Told` tuples. They look and
change nothing, and end by themselves within seconds.
"""
