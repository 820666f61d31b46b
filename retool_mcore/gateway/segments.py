"""The trajectories that a session's tree is trained as: one a segment, each sampled token in exactly one of them."""

from collections import Counter
from dataclasses import dataclass, field

from retool_mcore.gateway.tree import Answered, Node, Piece, Session
from retool_mcore.rollout.episode import append_span, append_turn, noted_call, token_at
from retool_mcore.rollout.trajectory import Trajectory
from retool_mcore.tools.base import Reply

SEGMENT = "segment"  # finish of a segment that does not hold the reply that was delivered last


@dataclass
class Segments:
    """trajectories: the main one first, which ends in the reply that was delivered last. reasons: of the replies that
    do not simply continue a segment, how many by reason. lost: replies that no client got, left out."""

    trajectories: list[Trajectory]
    reasons: Counter[str] = field(default_factory=Counter)
    lost: int = 0


def segments(session: Session, finish: str | None = None) -> Segments:
    """Return what the session is trained as; no trajectory where nothing was delivered.

    finish: why the episode ended; None: as its last turn did. A token that an earlier segment trains stands in the
    prompt of a later one.
    """
    used = [node for node in session.nodes if node.delivered]
    bases = {node.base.index for node in used if node.base is not None}
    leaves = [node for node in used if node.index not in bases]
    if not leaves:
        return Segments([], lost=len(session.nodes))
    main = max(used, key=lambda node: node.delivered)  # no other goes on from it
    leaves.sort(key=lambda node: (node is not main, node.index))
    trained: set[int] = set()
    trajectories = []
    for leaf in leaves:
        path = [leaf]
        while path[-1].base is not None:
            path.append(path[-1].base)
        path.reverse()
        new = [node for node in path if node.index not in trained]
        trained.update(node.index for node in new)
        # The last turn of a path that waits for replies has ended as an answer does: nobody called it again.
        ended = leaf.finish or "answer"
        trajectories.append(_trajectory(session, new, (finish or ended) if leaf is main else SEGMENT))
    reasons = Counter(node.reason for node in used if node.reason)
    return Segments(trajectories, reasons, len(session.nodes) - len(used))


def _trajectory(session: Session, nodes: list[Node], finish: str) -> Trajectory:
    """The trajectory of nodes that follow each other; what stands before the first is its prompt."""
    first = nodes[0].prompt
    made = Trajectory(
        list(first.ids), [], [], [], spans=[], calls=[], turns=0, finish=finish, generate_s=0.0, tool_s=0.0
    )
    made.started = first.began
    before: Node | None = None
    start = 0
    for node in nodes:
        if before is not None:
            wait = max(0.0, node.prompt.began - before.ended)
            made.turn_notes[-1].tool_s, made.tool_s = wait, made.tool_s + wait
            _note_calls(made, session, before.pieces[-1], node.prompt.answers, start, wait)
            append_span(made, "observation", node.prompt.delta, None)
        for piece in node.pieces:
            start = len(made.response_ids)
            text = session.fmt.decode(piece.turn.ids)
            append_turn(made, piece.turn, text, piece.calls, session.fmt, piece.generate_s)
            made.generate_s += piece.generate_s
            _note_calls(made, session, piece, piece.answers, start, 0.0)
            if piece.observation_ids:
                append_span(made, "observation", piece.observation_ids, None)
        before = node
    return made


def _note_calls(
    made: Trajectory, session: Session, piece: Piece, answers: list[Answered], start: int, wait: float
) -> None:
    for answer in answers:
        call = piece.calls[answer.place]
        # The client ran the call: whether it succeeded stands in its reply alone.
        reply = None if call.error else Reply(answer.whole, duration_s=wait / len(answers))
        at = start + token_at(session.fmt, piece.turn.ids, call.start)
        noted = noted_call(call, reply, made.turns - 1, at, answer.truncated)
        made.calls.append(noted)
