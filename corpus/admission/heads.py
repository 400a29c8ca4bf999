"""Moves each case into `bad/` or `good/`, and writes the lines `rejected-by` and `message` of its head.

The verdicts decide. Cases that Chancery cannot decode, and cases without verdicts, stay as they are.
"""

import pathlib

import clients

HERE = clients.HERE
DERIVED = ("rejected-by", "message")


def rejecting(verdicts, table):
    """Returns the clients that reject a case. A client is named with its versions if only some of them reject it."""
    words = []
    for name in dict.fromkeys(client.name for client in table):
        asked = [client for client in table if client.name == name and client.key in verdicts]
        rejects = [client for client in asked if verdicts[client.key]["verdict"] == "rejected"]
        if rejects:
            words.append(name if len(rejects) == len(asked) else clients.shortened(rejects))
    return words


def message(verdicts, table):
    """Returns the message of the newest version of the first client that rejects the case."""
    rejects = [client for client in table if verdicts.get(client.key, {}).get("verdict") == "rejected"]
    of_first = [client for client in rejects if client.name == rejects[0].name]
    return verdicts[of_first[-1].key]["message"][:200].strip()


def updated(text, verdicts, table):
    """Returns the text of a case with the lines that the verdicts decide, and whether a client rejects it."""
    words = rejecting(verdicts, table)
    lines = text.splitlines(keepends=True)
    n_head = next(number for number, line in enumerate(lines) if not line.startswith("# "))
    before = {line[2:].split(":")[0]: line for line in lines[:n_head]}
    head = [line for key, line in before.items() if key not in DERIVED]
    if words:
        head.append(f"# rejected-by: {', '.join(words)}\n")
        # The message of the same client differs in its beginning at most.
        first = before.get("rejected-by", ": ").split(": ")[1].split(",")[0].split("@")[0].strip()
        is_kept = first == words[0].split("@")[0]
        head.append(before["message"] if is_kept else f"# message: {message(verdicts, table)}\n")
    return "".join(head + lines[n_head:]), bool(words)


def main():
    table = clients.table(HERE)
    for case, verdicts in clients.load(HERE / "verdicts.json").items():
        kinds = {verdict["verdict"] for verdict in verdicts.values()}
        if not kinds or "refused by schema" in kinds:
            continue
        path = next(HERE.glob(f"*/*/*/{case}.yaml"))
        text, is_bad = updated(path.read_text(), verdicts, table)
        path.write_text(text)
        wanted = path.parents[2] / ("bad" if is_bad else "good") / path.parent.name / path.name
        if wanted != path:
            wanted.parent.mkdir(exist_ok=True)
            path.rename(wanted)
            print(f"{path.parents[1].name} -> {wanted.parents[1].name}: {case}")


if __name__ == "__main__":
    main()
