"""The events of the stress test, selected one after the other by the seed and their numbers.

Each event has its own random generator, so that neither the load nor the existing processes change
the selection of later events. An event returns whether it had a target.
"""

import random
import signal
import time

from world import MORE, name_of

GARBAGE = "version = 1\n[[rule]]\nname = 7\n"
WAYS = ["atomic", "in place"]
# Pauses between events.
PAUSE_MAX_S = 1.5
# The longest pause is longer than an agent waits for its helper.
PAUSE_OF_RUN_S = (0.5, 4)


def kill_agent(world, draw):
    return world.kill(draw.choice(world.agents).serving())


def crash_agent(world, draw):
    return world.kill(draw.choice(world.agents).serving(), signal.SIGABRT)


def kill_supervisor(world, draw):
    agent = draw.choice(world.agents)
    agent.orphans += agent.serving()
    return world.kill([agent.process.pid])


def kill_both(world, draw):
    agent = draw.choice(world.agents)
    everyone = [*agent.serving(), agent.process.pid]
    draw.shuffle(everyone)
    return world.kill(everyone)


def kill_signer(world, draw):
    return world.kill(draw.choice(world.agents).signers())


def kill_of_run(world, draw):
    """Kills the launcher, helper, supervisor, agent, signer or program of a run."""
    everyone = world.processes_of_runs()
    return world.kill([draw.choice(everyone)] if everyone else [])


def kill_helpers(world, draw):
    helpers = [pid for pid in world.processes_of_runs() if name_of(pid) == "tacit-helper"]
    return world.kill(helpers)


def pause_of_run(world, draw):
    """Stops one of these processes for a while."""
    seconds = draw.uniform(*PAUSE_OF_RUN_S)
    everyone = world.processes_of_runs()
    if not everyone:
        return False
    pid = draw.choice(everyone)
    found = world.send(pid, signal.SIGSTOP)
    for agent in world.agents:
        agent.verb("reload")
    time.sleep(seconds)
    # A launcher stops with its program, so both must be continued.
    for one in [pid, *(run.pid for run in world.runs)]:
        world.send(one, signal.SIGCONT)
    return found


def reload(world, draw):
    draw.choice(world.agents).verb("reload")
    return True


def restart(world, draw):
    draw.choice(world.agents).verb("restart")
    return True


def drain(world, draw):
    draw.choice(world.agents).verb("drain", "--timeout", "1s")
    return True


def close(world, draw):
    draw.choice(world.agents).verb("close", "--stale")
    return True


def swap_policy(world, draw):
    agent = draw.choice(world.agents)
    how = draw.choice(WAYS)
    more = MORE.format(port=draw.randint(7100, 7200))
    agent.write(agent.text + draw.choice(["", more]), how)
    agent.verb("reload")
    return True


def spoil_policy(world, draw):
    """Writes an invalid policy, which must not be installed."""
    agent = draw.choice(world.agents)
    text = draw.choice([GARBAGE, "", agent.text[: draw.randrange(len(agent.text))] + "\n= x"])
    agent.write(text, draw.choice(WAYS))
    if agent.verb("reload") == 0:
        world.fail(f"{agent.name} installed an invalid policy")
    agent.write(agent.text, "atomic")
    return True


def swap_certificate(world, draw):
    draw.choice(world.agents).install(draw.choice([0, 1]), draw.choice(WAYS))
    return True


def spoil_certificate(world, draw):
    agent = draw.choice(world.agents)
    agent.install(0, "truncated")
    if agent.verb("reload") == 0:
        world.fail(f"{agent.name} installed an invalid certificate")
    agent.install(draw.choice([0, 1]), "atomic")
    return True


# The relative frequency of each event.
EVENTS = {
    kill_agent: 3,
    crash_agent: 1,
    kill_supervisor: 1,
    kill_both: 2,
    kill_signer: 3,
    kill_of_run: 4,
    kill_helpers: 2,
    pause_of_run: 2,
    reload: 4,
    restart: 3,
    drain: 2,
    close: 1,
    swap_policy: 4,
    spoil_policy: 3,
    swap_certificate: 4,
    spoil_certificate: 2,
}


def drawn(seed: int, number: int):
    """The event with this number, the pause after it, and its random generator."""
    draw = random.Random(f"{seed} {number}")
    event = draw.choices(list(EVENTS), list(EVENTS.values()))[0]
    return event, draw.uniform(0, PAUSE_MAX_S), draw


def name_of_event(event) -> str:
    return event.__name__.replace("_", " ")
