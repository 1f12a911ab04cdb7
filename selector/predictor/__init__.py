"""Computing estimates away from the calls: in a thread of the server, or in a process of its own.

    run ── RunPredictor.submit(state, features, step) ──> Future[Estimate]

``LocalPredictor`` computes in a thread, from a copy of the run's estimator. ``ProcessPredictor`` keeps a replica of
each run's estimator in a child process of low priority: it sends what the run has observed since the last estimate, and
gets whole new estimates in shared memory, so that a heavy computation never makes a call wait for the interpreter or
for a core. A child that dies is started again, and the replicas are made anew from the runs' own states.

    module      holds
    ----------  -----------------------------------------------------------------------
    predictor   the interface, and computing in a thread
    memory      arrays that two processes share
    channel     messages with such arrays between two processes
    child       the process
    process     the server's side of it
"""
