"""What each worker is busy with, how fast it is, and whether it can be used.

It never knows models, roles or costs: those are of placement. `WorkerLoad` has all others of one worker as fields.

load             the load of one worker, what other proxies put on it, when its requests are expected to end
ahead            what a new request would have to wait for there
prefill_queue    prompts that have no first token yet
prefill_rate     learned seconds of prefill per token
pace             how fast the worker's streams flow
comparison       rates and paces of a fleet's workers, compared
capacity         the bounds of what the worker runs at once
availability     health, drains and the breaker, which closes a worker to traffic after failures
blame            whether a failure is the engine's or the request's
hand_overs       which engine of a pair is at fault where KV is not handed over
suspects         requests that may have ended an engine's process
health_monitor   when an engine is probed, and what its answer means
conditions       named conditions of workers and regions, raised and cleared
signs            what reports say of conditions
engine_loads     what an engine reports at `/v1/loads`
traffic          how busy the fleet has been lately
"""
