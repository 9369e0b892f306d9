"""What happens to the agents: one event after the other, drawn at random."""

import random
import signal

from world import MORE, kill, name_of

GARBAGE = "version = 1\n[[rule]]\nname = 7\n"


def kill_agent(world):
    agent = random.choice(world.agents)
    for pid in agent.serving():
        kill(pid)


def crash_agent(world):
    for pid in random.choice(world.agents).serving():
        kill(pid, signal.SIGABRT)


def kill_supervisor(world):
    agent = random.choice(world.agents)
    agent.orphans += agent.serving()
    kill(agent.process.pid)


def kill_both(world):
    agent = random.choice(world.agents)
    everyone = [*agent.serving(), agent.process.pid]
    random.shuffle(everyone)
    for pid in everyone:
        kill(pid)


def kill_signer(world):
    for pid in random.choice(world.agents).signers():
        kill(pid)


def kill_of_run(world):
    """The launcher, the helper, the supervisor, the agent or the program of a run."""
    everyone = world.processes_of_runs()
    if everyone:
        kill(random.choice(everyone))


def kill_helper(world):
    for pid in world.processes_of_runs():
        if name_of(pid) == "tacit-helper":
            kill(pid)


def reload(world):
    random.choice(world.agents).verb("reload")


def restart(world):
    random.choice(world.agents).verb("restart")


def drain(world):
    random.choice(world.agents).verb("drain", "--timeout", "1s")


def close(world):
    random.choice(world.agents).verb("close", "--stale")


def swap_policy(world):
    agent = random.choice(world.agents)
    how = random.choice(["atomic", "in place"])
    text = random.choice([agent.text, agent.text + MORE.format(port=random.randint(7100, 7200))])
    agent.write(text, how)
    agent.verb("reload")


def spoil_policy(world):
    """A policy that is none: it must not be installed."""
    agent = random.choice(world.agents)
    text = random.choice([GARBAGE, "", agent.text[: random.randrange(len(agent.text))] + "\n= x"])
    agent.write(text, random.choice(["atomic", "in place"]))
    if agent.verb("reload") == 0:
        world.fail(f"{agent.name} installed a policy that is none")
    agent.write(agent.text, "atomic")


def swap_certificate(world):
    world.install(random.choice(["localhost", "second"]), random.choice(["atomic", "in place"]))


def spoil_certificate(world):
    world.install("localhost", "truncated")
    world.b.verb("reload")
    world.install(random.choice(["localhost", "second"]), "atomic")


# How often each is drawn, beside the others.
EVENTS = {
    kill_agent: 3,
    crash_agent: 1,
    kill_supervisor: 1,
    kill_both: 2,
    kill_signer: 3,
    kill_of_run: 4,
    kill_helper: 2,
    reload: 4,
    restart: 3,
    drain: 2,
    close: 1,
    swap_policy: 4,
    spoil_policy: 3,
    swap_certificate: 4,
    spoil_certificate: 2,
}


def one(world) -> str:
    event = random.choices(list(EVENTS), list(EVENTS.values()))[0]
    event(world)
    return event.__name__
