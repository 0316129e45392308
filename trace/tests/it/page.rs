//! The page, in a real browser without a network.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use trace::report;

use crate::{read, sample};

/// Debian's headless Chromium, kept off every network.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

fn chromium(arguments: &[&str]) -> Vec<u8> {
    let profile = tempfile::tempdir().unwrap();
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new("chromium")
        .args(FLAGS)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .stdout(out.reopen().unwrap())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("the page is tested in Chromium, which did not start: {error}; install Debian's package chromium")
        });
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "chromium: {status}");
            return std::fs::read(out.path()).unwrap();
        }
        if begin.elapsed() > Duration::from_mins(2) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("chromium did not end within two minutes");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes the page of `files`, compared with `against`, into a folder that lives as long as the answer.
fn page(files: &[PathBuf], against: Option<&Path>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let mut trace = trace::read(files).unwrap();
    report::write(&mut trace, None, against.map(read), &file).unwrap();
    (folder, file)
}

/// Opens the page, runs `script` in it, whose value is an object, and answers that object. Errors of the page and
/// everything it asks a network for come with it.
fn in_page(file: &Path, script: &str) -> Value {
    let html = std::fs::read_to_string(file).unwrap();
    let html = html.replacen(
        "<head>",
        "<head><script>window.failures = []; window.onerror = (text) => failures.push(String(text));</script>",
        1,
    );
    let probe = format!(
        "<script>{{ let told; try {{ told = (() => {{ {script} }})(); }} catch (error) {{ failures.push(String(error)); told = {{}}; }}
         told.failures = failures;
         told.requests = performance.getEntriesByType('resource').map((entry) => entry.name);
         const made = document.createElement('pre'); made.id = 'told';
         made.textContent = encodeURIComponent(JSON.stringify(told)); document.body.append(made); }}</script></body>"
    );
    assert!(html.contains("</body>"));
    let probed = file.with_file_name("probed.html");
    std::fs::write(&probed, html.replacen("</body>", &probe, 1)).unwrap();
    let address = format!("file://{}", probed.display());
    let dom = String::from_utf8(chromium(&["--window-size=1400,1000", "--dump-dom", &address])).unwrap();
    let told =
        dom.split("<pre id=\"told\">").nth(1).unwrap_or_else(|| panic!("the page told nothing: {dom}"));
    let told = told.split("</pre>").next().unwrap();
    let value: Value = serde_json::from_str(&percent_decoded(told)).unwrap();
    assert_eq!(value["failures"], serde_json::json!([]), "{value}");
    assert_eq!(value["requests"], serde_json::json!([]), "the page asks a network for something");
    value
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes().iter().copied();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap(), rest.next().unwrap()];
            bytes.push(u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_timeline_zooms_by_process_and_thread_with_kernels_beneath() {
    let (_folder, file) = page(&[sample("nsys-2025.3.1-h200/kernels/trace.sqlite")], None);
    let told = in_page(
        &file,
        r#"
        const view = views[0], canvas = view.canvas, span = () => Number(canvas.dataset.span), told = {};
        const button = (text) => [...document.querySelectorAll("button")].find((b) => b.textContent === text);
        const key = (name) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name }));
        const box = canvas.getBoundingClientRect();
        told.lanes = view.lanes.map((lane) => [lane.process, lane.title, lane.items.length / 6]);
        told.spans = [span()];
        button("zoom in").click(); told.spans.push(span());
        canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -1, clientX: box.left + 700, clientY: box.top + 40 }));
        told.spans.push(span());
        key("0"); told.spans.push(span());
        view.select.selectedIndex = 3; view.select.onchange();
        told.chosen = view.lanes.map((lane) => lane.title); told.spans.push(span());
        view.select.selectedIndex = 0; view.select.onchange();
        const at = (lane, item) => [NAMES + (lane.items[item * 6] + lane.items[item * 6 + 1] / 2 - view.from) / (view.to - view.from) * (view.width - NAMES), view.tops[view.lanes.indexOf(lane)] + 8];
        view.pick(view.hit(...at(view.lanes[0], 0))); told.range = view.picked.textContent;
        view.pick(view.hit(...at(view.lanes[1], 1))); told.kernel = view.picked.textContent;
        view.pick(view.hit(NAMES + 5, view.tops[0] + 8)); told.nothing = view.picked.textContent;
        told.phases = [...document.querySelectorAll("table.phases tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent));
        return told;
        "#,
    );
    assert_eq!(
        told["lanes"],
        serde_json::json!([["process 649", "thread 649", 3], ["process 649", "device 0 stream 7", 10]])
    );
    let spans: Vec<f64> =
        told["spans"].as_array().unwrap().iter().map(|span| span.as_f64().unwrap()).collect();
    assert!((spans[1] - spans[0] / 2.0).abs() < 2.0, "{spans:?}");
    assert!((spans[2] - spans[1] * 0.8).abs() < 2.0, "{spans:?}");
    assert!((spans[3] - spans[0]).abs() < 2.0, "{spans:?}");
    assert_eq!(told["chosen"], serde_json::json!(["device 0 stream 7"]));
    let range = told["range"].as_str().unwrap();
    assert!(
        range.starts_with(
            "ds4.layer_range mode=verify tokens=4 layer_begin=0 layer_end=8 device=0: 77.533 ms"
        ),
        "{range}"
    );
    assert!(range.ends_with("trace.sqlite, row 1)"), "{range}");
    let kernel = told["kernel"].as_str().unwrap();
    assert!(
        kernel.contains("sgemm") && kernel.contains("belongs to ds4.layer_range mode=verify"),
        "{kernel}"
    );
    assert_eq!(told["nothing"], "Nothing is picked.");
    assert_eq!(
        told["phases"],
        serde_json::json!([
            [
                "ds4.layer_range verify",
                "3",
                "77.783 ms",
                "25.928 ms",
                "1.044 ms",
                "1.044 ms",
                "1.3 %",
                "6",
                "77.618 ms"
            ],
            ["launched outside any range", "–", "–", "–", "23.84 µs", "23.84 µs", "–", "4", "–"]
        ])
    );
}

#[test]
fn findings_stand_on_the_page_in_words() {
    let (_folder, file) = page(&[sample("rocprofv3-0.5.0/edges/trace_marker_api_trace.csv")], None);
    let told = in_page(
        &file,
        r#"return {
            summary: document.getElementById("summary").textContent,
            rows: [...document.querySelectorAll("table.findings tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent)),
            drawn: views[0].canvas.dataset.drawn,
        };"#,
    );
    assert_eq!(told["summary"], "8 ranges, 1 mark, 3 findings, 7 notes");
    let rows = told["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 10);
    assert_eq!(rows[0][0], "✗ finding");
    assert_eq!(rows[0][1], "ds4.request id=7");
    assert!(rows[0][3].as_str().unwrap().ends_with("line 9, thread 3755"));
    assert_eq!(rows[3][0], "• note");
    assert_ne!(told["drawn"], "0");
}

#[test]
fn two_runs_are_compared() {
    let shards = sample("nsys-2023.4.4/shards/trace.sqlite");
    let script = r##"return {
        verdict: document.getElementById("verdict").textContent,
        rows: [...document.querySelectorAll("#comparison tbody tr")].map((row) => [...row.children].slice(0, 3).map((cell) => cell.textContent)),
        drawn: views.map((view) => view.lanes.length),
    };"##;
    let (_folder, file) =
        page(std::slice::from_ref(&shards), Some(&sample("rocprofv3-0.5.0/shards/trace_results.json")));
    let told = in_page(&file, script);
    assert_eq!(told["verdict"], "✓ same: the same phases: 40 ranges on 1 thread");
    assert_eq!(told["drawn"], serde_json::json!([1, 1]));
    let (_folder, file) = page(&[shards], Some(&sample("rocprofv3-0.5.0/spec/trace_results.json")));
    let told = in_page(&file, script);
    assert!(told["verdict"].as_str().unwrap().starts_with("✗ different: thread 4294"), "{told}");
    assert_eq!(told["rows"][1], serde_json::json!(["ds4.layer_range exact", "22", "11"]));
}

#[test]
fn it_reads_in_dark_and_in_light_and_without_colour() {
    let (_folder, file) = page(&[sample("nsys-2023.4.4/shards/trace.sqlite")], None);
    let told = in_page(
        &file,
        r#"
        const light = (colour) => {
            const made = document.createElement("canvas").getContext("2d");
            made.fillStyle = colour; made.fillRect(0, 0, 1, 1);
            const [r, g, b] = [...made.getImageData(0, 0, 1, 1).data].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
        const themes = {};
        for (let turn = 0; turn < 2; turn += 1) {
            document.getElementById("theme").click();
            const style = getComputedStyle(document.documentElement), get = (name) => style.getPropertyValue(name).trim();
            const canvas = views[0].canvas, pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const greys = new Set();
            for (let at = 0; at < pixels.length; at += 4) greys.add(Math.round((pixels[at] * 0.3 + pixels[at + 1] * 0.59 + pixels[at + 2] * 0.11) / 8));
            themes[document.documentElement.dataset.theme] = {
                text: contrast(get("--text"), get("--back")), dim: contrast(get("--dim"), get("--back")), soft: contrast(get("--text"), get("--soft")),
                back: light(get("--back")), greys: greys.size,
            };
        }
        return themes;
        "#,
    );
    for theme in ["dark", "light"] {
        let theme = &told[theme];
        for pair in ["text", "dim", "soft"] {
            assert!(theme[pair].as_f64().unwrap() >= 4.5, "{told}");
        }
        assert!(theme["greys"].as_u64().unwrap() >= 8, "boxes, edges and words differ in grey alone: {told}");
    }
    assert!(told["dark"]["back"].as_f64() < told["light"]["back"].as_f64());
}

#[test]
fn labels_that_imitate_markup_stay_words() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.json");
    let text = r#"{"traceEvents":[{"ph":"X","name":"</script><img src=x onerror=failures.push('markup')>","pid":1,"tid":1,"ts":0,"dur":5}]}"#;
    std::fs::write(&file, text).unwrap();
    let (_folder, page) = page(&[file], None);
    let told = in_page(
        &page,
        "return { label: document.querySelector('table.phases td').textContent, images: document.images.length };",
    );
    assert_eq!(told["label"], "</script><img src=x onerror=failures.push('markup')>");
    assert_eq!(told["images"], 0);
}

#[test]
fn a_screenshot_is_a_picture() {
    let (folder, file) = page(&[sample("nsys-2025.3.1-h200/kernels/trace.sqlite")], None);
    let picture = folder.path().join("page.png");
    chromium(&[
        "--window-size=1200,900",
        &format!("--screenshot={}", picture.display()),
        &format!("file://{}", file.display()),
    ]);
    let bytes = std::fs::read(&picture).unwrap();
    assert!(bytes.starts_with(b"\x89PNG"));
    assert!(bytes.len() > 20_000, "{} bytes are an empty page", bytes.len());
}
