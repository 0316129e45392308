//! rocprofv3's CSV: bytes without a header are given one.
#![no_main]

const HEADER: &[u8] = b"\"Domain\",\"Function\",\"Process_Id\",\"Thread_Id\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\"\n";

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let headed = bytes.split(|&byte| byte == b'\n').next().is_some_and(|line| line.ends_with(b"_Timestamp\""));
    if headed { trace_fuzz::ask(bytes) } else { trace_fuzz::ask(&[HEADER, bytes].concat()) }
});
