# SPDX-License-Identifier: MIT OR Apache-2.0
"""Training of the cluster's networks: worlds of the lab, run over lines of JSON, and masked PPO.

`scripts/learn` starts it in the environment .venv-learn. The network is one small stack of layers
that gives each row of features a score (tests/cluster-lab/src/contenders/learnt.rs). The critic is
not stored.
"""

import json
import subprocess
import time
from collections import deque

import gymnasium
import numpy
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

# Sizes of the lab's environments: features of a row, most rows, jobs (or services) of a world.
SHAPES = {"meta-rl": (15, 24, 150), "sched2": (16, 49, 120), "sched2-told": (16, 49, 120), "inss": (19, 35, 64)}
# Seeds from here on are for training (tests/cluster-lab/src/environment.rs).
FIRST_SEED = 1_000
# Number of rows that are stored with their scores next to a network. Rust is tested against them.
VECTORS = 16
HIDDEN = 32
# Worlds whose mean is a point of the curve.
WINDOW = 60


def near(rows):
    """The plain rule `near`, from a node's features: few leaves, few nodes, the tightest."""
    leaf = numpy.where(rows[:, 7] > 0, 100 - 50 * rows[:, 8], 50 * rows[:, 6])
    node = numpy.where(rows[:, 1] > 0, 10 - 5 * rows[:, 2], 5 * rows[:, 0])
    return 1_000 * rows[:, 9] + leaf + node


def patient(rows):
    """SCHED2's stand-in: small gangs first, and for a while few nodes for gangs that send much."""
    size, waited = rows[:, 1] * 4, rows[:, 3] * 8
    ready = (rows[:, 6] > 0) | (waited >= numpy.log2(1 + 20 * rows[:, 2]))
    return numpy.where(rows[:, 0] > 0, numpy.where(ready, 100 - size + 0.4 * waited, -100), 0)


def shortest(rows):
    """The same, with the least GPU time first."""
    waited = rows[:, 3] * 8
    ready = (rows[:, 6] > 0) | (waited >= numpy.log2(1 + 20 * rows[:, 2]))
    return numpy.where(rows[:, 0] > 0, numpy.where(ready, 100 - rows[:, 5], -100), 0)


def one_step_more(rows):
    """The least share, and of these the tightest; then one step more, and the largest batch."""
    share = rows[:, 14] - 100 * numpy.abs(4 * rows[:, 18] - 1)
    gpu = -10 * rows[:, 8] - rows[:, 9]
    return numpy.where(rows[:, 1] > 0, share, numpy.where(rows[:, 0] > 0, gpu, -1_000))


# The rule that runs each world for comparison. Its cost is subtracted from the reward, so that the
# reward depends on choices and not on arrivals. The network first learns to imitate the rule.
REFERENCES = {"meta-rl": near, "sched2": patient, "sched2-told": shortest, "inss": one_step_more}


class Lab:
    """A lab process that runs worlds."""

    def __init__(self, program, what):
        self.width, self.most, self.jobs = SHAPES[what]
        self.lab = subprocess.Popen(
            [program, "--environment", what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def say(self, word):
        """Sends a message to the lab, and returns its answer."""
        self.lab.stdin.write(json.dumps(word) + "\n")
        line = self.lab.stdout.readline()
        if not line:
            raise RuntimeError(f"the lab ended with {self.lab.wait()}")
        return json.loads(line)

    def begin(self, seed):
        """Begins a world."""
        return self.say({"seed": seed, "jobs": self.jobs})

    def rows(self, heard):
        """The rows of an answer, and which of them may be taken."""
        rows = numpy.asarray(heard["rows"], dtype=numpy.float32).reshape(-1, self.width)
        return rows, numpy.asarray(heard["allowed"], dtype=bool)

    def play(self, seed, rule, keep=None):
        """Runs a world under a rule. Returns times, and the cost until each, in seconds."""
        heard, times, spent = self.begin(seed), [0.0], [0.0]
        while True:
            times.append(heard["now_s"])
            spent.append(heard["jobs_s"])
            if heard["ended"]:
                return times, spent
            rows, allowed = self.rows(heard)
            take = int(numpy.argmax(numpy.where(allowed, rule(rows), -1e9)))
            if keep is not None:
                keep.append((rows, allowed, take))
            heard = self.say({"take": take})

    def close(self):
        """Ends the process."""
        self.lab.stdin.close()
        self.lab.stdout.close()
        self.lab.wait(timeout=60)


class World(gymnasium.Env):
    """One lab process. A choice is a step, a world an episode."""

    def __init__(self, program, what, number, count):
        self.width, self.rows, _ = SHAPES[what]
        self.rule, self.answers = REFERENCES[what], what == "inss"
        self.lab, self.beside = Lab(program, what), Lab(program, what)
        self.seed_next, self.stride = FIRST_SEED + number, count
        self.observation_space = gymnasium.spaces.Box(-8, 16, (self.rows * self.width,), numpy.float32)
        self.action_space = gymnasium.spaces.Discrete(self.rows)
        self.allowed = numpy.ones(self.rows, dtype=bool)
        self.before = 0.0

    def look(self, heard):
        """The observation of an answer, and its cost since the last one."""
        seen = numpy.zeros(self.rows * self.width, dtype=numpy.float32)
        self.allowed[:] = False
        if heard["ended"]:
            self.allowed[0] = True
        else:
            rows, allowed = self.lab.rows(heard)
            seen[: rows.size] = rows.ravel()
            self.allowed[: len(allowed)] = allowed
        # Job-hours in the system beyond those of the rule at the same time. The cost after the last
        # job's end is the rule's own.
        at = numpy.inf if heard["ended"] else heard["now_s"]
        now = heard["jobs_s"] - float(numpy.interp(at, *self.reference))
        cost, self.before = now - self.before, now
        return seen, cost / 3_600

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.reference, self.before = self.beside.play(self.seed_next, self.rule), 0.0
        heard = self.lab.begin(self.seed_next)
        self.seed_next += self.stride
        return self.look(heard)[0], {}

    def step(self, action):
        heard = self.lab.say({"take": int(action)})
        seen, cost = self.look(heard)
        own = {}
        if heard["ended"]:
            times = self.reference[1][-1] / max(heard["jobs_s"], 1e-9)
            if self.answers:
                # Requests that are answered instead of turned away.
                times = heard["mean_s"] / (heard["mean_s"] + heard["jobs_s"] - self.reference[1][-1])
            own = {"mean_s": heard["mean_s"], "times": times}
        return seen, -cost, heard["ended"], False, own

    def action_masks(self):
        """The rows that may be taken now."""
        return self.allowed

    def close(self):
        self.lab.close()
        self.beside.close()


def stack(width, *sizes):
    """Layers with only "not below 0" between them."""
    layers = []
    for before, after in zip((width, *sizes), sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Rows(torch.nn.Module):
    """The actor scores each row; the critic sees the mean and the maximum of all rows."""

    def __init__(self, width, rows):
        super().__init__()
        self.width, self.rows = width, rows
        self.latent_dim_pi, self.latent_dim_vf = rows, HIDDEN
        self.scorer = stack(width, HIDDEN, HIDDEN, 1)
        self.scorer[-1].weight.data *= 0.1
        self.each = torch.nn.Sequential(stack(width, HIDDEN, HIDDEN), torch.nn.ReLU())
        self.whole = torch.nn.Sequential(stack(2 * HIDDEN, HIDDEN), torch.nn.ReLU())

    def forward_actor(self, seen):
        return self.scorer(seen.view(-1, self.rows, self.width)).squeeze(-1)

    def forward_critic(self, seen):
        rows = seen.view(-1, self.rows, self.width)
        there = (rows.abs().sum(-1, keepdim=True) > 0).float()
        each = self.each(rows) * there
        mean = each.sum(1) / there.sum(1).clamp(min=1)
        return self.whole(torch.cat([mean, each.amax(1)], dim=1))

    def forward(self, seen):
        return self.forward_actor(seen), self.forward_critic(seen)


class RowPolicy(MaskableActorCriticPolicy):
    """Rows in place of the library's own stacks; the scores are the logits."""

    def __init__(self, *words, width, rows, **named):
        self.shape = (width, rows)
        super().__init__(*words, ortho_init=False, **named)

    def _build_mlp_extractor(self):
        self.mlp_extractor = Rows(*self.shape)

    def _build(self, lr_schedule):
        super()._build(lr_schedule)
        self.action_net = torch.nn.Identity()
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


class Curve(BaseCallback):
    """Figures of the last worlds, after each rollout: the mean, and its ratio to the rule's."""

    def __init__(self, save, unit):
        super().__init__()
        self.save, self.unit, self.points, self.began = save, unit, [], time.monotonic()
        self.worlds, self.times = deque(maxlen=WINDOW), deque(maxlen=WINDOW)

    def _on_step(self):
        ended = [info for info in self.locals["infos"] if "mean_s" in info]
        self.worlds.extend(info["mean_s"] for info in ended)
        self.times.extend(info["times"] for info in ended)
        return True

    def _on_rollout_end(self):
        middle = [float(numpy.mean(list(of))) if of else float("nan") for of in (self.worlds, self.times)]
        self.points.append((self.num_timesteps, round(middle[0], 1), round(middle[1], 4)))
        print(
            f"{self.num_timesteps:>9} choices {middle[0]:>9.0f} {self.unit} {middle[1]:>8.4f} times the rule"
            f"{time.monotonic() - self.began:>8.0f} s here",
            flush=True,
        )
        self.save(self.model, self.points)


def checksum(text):
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def text_of(model, what):
    """The contents of the network's file."""
    lines = ["weft-network 1", f"name {what}"]
    for layer in model.policy.mlp_extractor.scorer:
        if isinstance(layer, torch.nn.Linear):
            lines.append(f"layer {layer.in_features} {layer.out_features}")
            for bias, weights in zip(layer.bias.tolist(), layer.weight.tolist()):
                lines.append(" ".join(f"{value:.9g}" for value in (bias, *weights)))
    text = "\n".join(lines)
    return f"{text}\nsum {checksum(text):016x}\n"


def vectors_of(model, what):
    """Rows with their scores, as this Python computes them."""
    width = SHAPES[what][0]
    rows = torch.rand((VECTORS, width), generator=torch.Generator().manual_seed(1)) * 2 - 0.5
    with torch.no_grad():
        scores = model.policy.mlp_extractor.scorer(rows).squeeze(-1)
    lines = [" ".join(f"{value:.9g}" for value in (*row, score)) for row, score in zip(rows.tolist(), scores.tolist())]
    return "\n".join(lines) + "\n"


def follow(program, what, policy, options):
    """Trains the actor to choose as the rule does, before the reinforcement learning begins."""
    lab, kept = Lab(program, what), []
    for seed in range(options.pupil):
        # Seeds that no world of the training has.
        lab.play(FIRST_SEED + 10_000_000 + seed, REFERENCES[what], kept)
    lab.close()
    if not kept:
        return
    seen = torch.zeros(len(kept), lab.most, lab.width)
    bar = torch.full((len(kept), lab.most), -1e9)
    taken = torch.tensor([take for _, _, take in kept])
    for at, (rows, allowed, _) in enumerate(kept):
        seen[at, : len(rows)] = torch.from_numpy(rows)
        bar[at, : len(rows)][torch.from_numpy(allowed)] = 0
    scorer = policy.mlp_extractor.scorer
    adam = torch.optim.Adam(scorer.parameters(), lr=2e-3)
    for round_ in range(12):
        right = 0
        for some in torch.randperm(len(kept)).split(256):
            scores = scorer(seen[some]).squeeze(-1) + bar[some]
            loss = torch.nn.functional.cross_entropy(scores, taken[some])
            adam.zero_grad()
            loss.backward()
            adam.step()
            right += int((scores.argmax(1) == taken[some]).sum())
    print(f"as the rule in {right / len(kept):.3f} of {len(kept)} choices", flush=True)


def train(program, what, out, options):
    """Trains, and writes NAME.txt, .vectors.txt and .curve.csv to a folder after each rollout."""
    torch.set_num_threads(1)
    width, rows, _ = SHAPES[what]
    # Mean completion in s, or answered requests a second.
    unit = "requests" if what == "inss" else "s"
    worlds = [lambda n=n: World(program, what, n, options.worlds) for n in range(options.worlds)]
    environment = VecNormalize(DummyVecEnv(worlds), norm_obs=False, gamma=options.gamma)
    model = MaskablePPO(
        RowPolicy,
        environment,
        n_steps=options.steps,
        batch_size=min(512, options.steps * options.worlds),
        n_epochs=4,
        learning_rate=lambda left: options.rate * left,
        gamma=options.gamma,
        gae_lambda=options.trace,
        target_kl=0.03,
        ent_coef=options.entropy,
        seed=options.seed,
        device="cpu",
        policy_kwargs={"width": width, "rows": rows},
    )

    def save(model, points):
        (out / f"{what}.txt").write_text(text_of(model, what))
        (out / f"{what}.vectors.txt").write_text(vectors_of(model, what))
        (out / f"{what}.curve.csv").write_text(
            f"choices,mean_{unit},times_the_rule\n" + "".join(",".join(map(str, point)) + "\n" for point in points)
        )

    curve = Curve(save, unit)
    follow(program, what, model.policy, options)
    try:
        model.learn(options.choices, callback=curve)
        save(model, curve.points)
    finally:
        environment.close()
