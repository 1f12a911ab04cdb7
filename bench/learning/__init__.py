"""What choosing and reusing saves: arms of one experiment, trained through the service, on several mixtures of tasks
and several base policies. ``python -m bench.learning --help``.

    mixtures    what is practised on, and what training begins from
    arms        ways of choosing
    seeds       which are for tuning and which for reporting
    tuning      the settings of the optimiser, chosen for the uniform arm
    jobs        all of it, parallel and resumable
    ratios      arms against uniform, with intervals
    report      tables, pictures, JSON
"""
