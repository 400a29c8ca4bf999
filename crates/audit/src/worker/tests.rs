use serde_json::Value;

use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

/// The lines that the double of an output has taken, and the operations that fail.
#[derive(Debug, Default)]
struct State {
    lines: Vec<String>,
    appends_fail: bool,
    syncs_fail: bool,
    n_failed: u64,
}

#[derive(Clone, Default)]
struct Double(Arc<Mutex<State>>);

impl Output for Double {
    fn append(&mut self, _: u64, line: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.appends_fail {
            state.n_failed += 1;
            return Err(io::Error::other("no space"));
        }
        state.lines.push(String::from_utf8(line.to_vec()).unwrap());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<Option<Event>> {
        let mut state = self.0.lock();
        if state.syncs_fail {
            state.n_failed += 1;
            return Err(io::Error::other("no sync"));
        }
        Ok(None)
    }
}

impl Double {
    fn wait(&self, what: &str, is_reached: impl Fn(&State) -> bool) {
        let start = Instant::now();
        while !is_reached(&self.0.lock()) {
            assert!(start.elapsed() < DEADLINE, "{what}: {:?}", self.0.lock());
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn verbs(&self) -> Vec<String> {
        let verb = |line: &String| {
            let record: Value = serde_json::from_str(line).unwrap();
            match &record["details"]["records"] {
                Value::Null => record["verb"].as_str().unwrap().to_owned(),
                n => format!("{} {n}", record["verb"].as_str().unwrap()),
            }
        };
        self.0.lock().lines.iter().map(verb).collect()
    }
}

fn start(double: &Double, queue_max: usize, sync_interval: Duration) -> Queue {
    let settings = WorkerSettings { kind: "file", queue_max, sync_interval };
    Queue::start(Box::new(double.clone()), Chain::EMPTY, None, settings).unwrap()
}

fn entry(verb: &str) -> (Arc<Entry>, oneshot::Receiver<()>) {
    let (sender, taken) = oneshot::channel();
    (Arc::new(Entry::new(format!("{{\"verb\":\"{verb}\"}}"), Some(sender))), taken)
}

fn stop(queue: &Queue) {
    queue.stop().unwrap().blocking_recv().unwrap_err();
}

/// A full disk delays records, and those that find the queue full are dropped. A record tells their number.
#[test]
fn full_disk_keeps_first_records_and_later_record_tells_number_of_dropped_ones() {
    let double = Double::default();
    let queue = start(&double, 2, Duration::from_secs(1));
    double.0.lock().appends_fail = true;
    assert!(queue.push(&entry("a").0));
    // The thread holds the first record, so that two more fit into the queue.
    double.wait("an attempt", |state| state.n_failed > 0);
    assert!(queue.push(&entry("b").0) && queue.push(&entry("c").0));
    assert!(!queue.push(&entry("d").0) && !queue.push(&entry("e").0));
    double.0.lock().appends_fail = false;
    double.wait("all records", |state| state.lines.len() == 4);
    stop(&queue);
    assert_eq!(double.verbs(), ["a", "audit.dropped 2", "b", "c"]);
}

#[test]
fn record_is_taken_when_written_or_when_synced_if_the_interval_is_zero() {
    for (interval, is_taken) in [(Duration::from_secs(3600), true), (Duration::ZERO, false)] {
        let double = Double::default();
        double.0.lock().syncs_fail = true;
        let queue = start(&double, 8, interval);
        let (first, mut taken) = entry("a");
        queue.push(&first);
        if is_taken {
            taken.blocking_recv().unwrap();
        } else {
            double.wait("failed syncs", |state| state.n_failed > 2);
            taken.try_recv().unwrap_err();
            assert!(queue.oldest_unwritten(SystemTime::now() + DEADLINE) >= DEADLINE);
            double.0.lock().syncs_fail = false;
            taken.blocking_recv().unwrap();
        }
        stop(&queue);
        assert_eq!(double.verbs(), ["a"]);
    }
}

#[test]
fn age_of_oldest_unwritten_record_is_known_while_the_sink_fails() {
    let double = Double::default();
    double.0.lock().appends_fail = true;
    let queue = start(&double, 8, Duration::from_secs(1));
    assert_eq!(queue.oldest_unwritten(SystemTime::now() + DEADLINE), Duration::ZERO);
    queue.push(&entry("a").0);
    double.wait("an attempt", |state| state.n_failed > 0);
    assert!(queue.oldest_unwritten(SystemTime::now() + DEADLINE) >= DEADLINE);
    double.0.lock().appends_fail = false;
    double.wait("the record", |state| state.lines.len() == 1);
    let start = Instant::now();
    while queue.oldest_unwritten(SystemTime::now() + DEADLINE) > Duration::ZERO {
        assert!(start.elapsed() < DEADLINE);
        thread::sleep(Duration::from_millis(1));
    }
    stop(&queue);
}

#[test]
fn queued_records_are_written_before_the_thread_ends_and_a_broken_sink_does_not_prevent_the_end() {
    let double = Double::default();
    let queue = start(&double, 100, Duration::from_secs(1));
    for _ in 0..50 {
        queue.push(&entry("a").0);
    }
    stop(&queue);
    assert_eq!(double.verbs().len(), 50);
    double.0.lock().appends_fail = true;
    let queue = start(&double, 100, Duration::from_secs(1));
    let (last, taken) = entry("b");
    queue.push(&last);
    drop(last);
    stop(&queue);
    taken.blocking_recv().unwrap_err();
}
