//! Any text as a recording: each line is refused, or replayed by a topology that must not mind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_server_discovery::{RecordedInput, RecordingStart};

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let Some(first) = lines.next() else { return };
    let Ok(start) = RecordingStart::from_line(first) else { return };
    assert_eq!(RecordingStart::from_line(&start.to_line()).as_ref(), Ok(&start));
    let Ok(mut topology) = start.topology() else { return };
    while topology.poll_output().is_some() {}
    let mut now = start.at;
    for line in lines {
        let Ok(recorded) = RecordedInput::from_line(line) else { continue };
        assert_eq!(RecordedInput::from_line(&recorded.to_line()).as_ref(), Ok(&recorded));
        // Time never goes back.
        now = now.max(recorded.at);
        topology.handle(now, recorded.input);
        while topology.poll_output().is_some() {}
    }
});
