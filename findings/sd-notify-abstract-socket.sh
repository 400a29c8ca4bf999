#!/usr/bin/env bash
# Packages: the crate sd-notify 0.5.0.
#
# Behavior: if `NOTIFY_SOCKET` begins with `@`, `sd_notify::notify` takes the `@` as the first character of a file name, and
# returns an error. The service manager that listens on the abstract socket of this name receives nothing.
#
# Why it surprises: sd_notify(3), to which the crate's documentation refers, defines both forms: a path, or `@` and the name of
# an abstract socket. Some supervisors use only the second form, because it leaves no file behind.
#
# What follows: a program that ignores the result, as the crate's example does, never becomes ready for such a supervisor. Send
# the datagram with `std::os::linux::net::SocketAddrExt` if the variable begins with `@`.
#
# Output seen:
#   a path: Ok(()), received b'READY=1\n'
#   an abstract name: NotFound, received nothing
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

cargo init --quiet --vcs none --name example .
cargo add --quiet sd-notify@=0.5.0
cat >src/main.rs <<'RS'
fn main() {
    match sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        Ok(()) => println!("Ok(())"),
        Err(error) => println!("{:?}", error.kind()),
    }
}
RS
cargo build --quiet

cat >observe.py <<'PY'
import os, socket, subprocess

def notify(address, variable):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.setblocking(False)
        environment = {**os.environ, "NOTIFY_SOCKET": variable}
        said = subprocess.run(["target/debug/example"], env=environment, stdout=subprocess.PIPE, text=True, check=True)
        try:
            received = manager.recv(4096)
        except BlockingIOError:
            received = "nothing"
        return said.stdout.strip(), received

path = os.path.abspath("notify")
result = notify(path, path)
print(f"a path: {result[0]}, received {result[1]}")
assert result == ("Ok(())", b"READY=1\n"), result
name = f"example-{os.getpid()}"
result = notify(f"\0{name}", f"@{name}")
print(f"an abstract name: {result[0]}, received {result[1]}")
assert result == ("NotFound", "nothing"), result
PY
python3 observe.py
echo "ok: sd-notify does not reach abstract sockets"
