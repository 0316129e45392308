//! What a profiler hears, call by call, and what happens when it is there by halves or not at all.
//!
//! The tables of NVTX are the process's, so each case is a process of its own: the ignored tests named
//! `scene_...` are those programs.

#![cfg(target_os = "linux")]

mod child;
mod shim;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::thread;

use backend_nvtx::Nvtx;
use marker_core::{Detail, Fields, Label, Marker, Markers, Phase, Scope, Token, intern, range};
use shim::Shim;

fn verify(rows: u64) -> Fields {
    Fields::new(Scope::LAYER_RANGE).mode(Phase::Verify).tokens(rows).layers(0..8).device(0)
}

/// Every kind of call once or twice.
fn say_everything(nvtx: &Nvtx, detail: Detail) {
    let markers = Markers::new(nvtx, detail);
    markers.name_thread("decode");
    // Never sent: it makes nsys 2022.4 lose thousands of events around it.
    markers.name_thread("");
    for _ in 0..2 {
        range!(markers, Fields::new(Scope::SPEC_DECODE).mode(Phase::Batched).tokens(30));
        range!(markers, verify(5));
    }
    markers.mark("moment");
    markers.start(Fields::new(Scope::REQUEST).tokens(30)).stop();
    // A label that is in no table.
    let free = Label::text("free text");
    let token = nvtx.push(&free);
    nvtx.pop(token);
}

fn tell_counters(nvtx: &Nvtx) {
    let counters = nvtx.counters();
    println!("> {} {} {}", counters.pushed, counters.popped, counters.failed);
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test protocol`"]
fn scene_everything() {
    let detail = if std::env::var_os("DETAIL").is_some() { Detail::Full } else { Detail::Phases };
    let nvtx = Nvtx::load_or_diagnose(detail);
    println!("> {}", std::process::id());
    say_everything(&nvtx, detail);
    tell_counters(&nvtx);
    println!("> {}", Nvtx::report());
}

#[test]
fn a_profiler_hears_the_domain_the_categories_and_each_event_in_order() {
    let shim = Shim::new();
    let (ended, log) = shim.run(&mut shim.scene("scene_everything"));
    let told = ended.told();
    let thread = log.events()[0];
    // The harness runs the scene in the main thread or in one beside it.
    assert!(thread.starts_with("thread ") && thread.ends_with("=decode"), "{thread}");
    let verify = "push domain=10 category=3 color=ffe69f00 string=101";
    let spec = "push domain=10 category=2 color=fff0e442 string=100";
    assert_eq!(
        log.lines(),
        [
            "tables 16 24 version=3 others=00",
            "cells 16 16 first=00 last=00",
            "create 10=ds4",
            "category domain=10 1=ds4.prefill",
            "category domain=10 2=ds4.spec_decode",
            "category domain=10 3=ds4.layer_range",
            "category domain=10 4=ds4.request",
            "category domain=10 5=ds4.draft",
            "category domain=10 6=ds4.rollback",
            "category domain=10 7=ds4.sample",
            thread,
            "register domain=10 100=ds4.spec_decode mode=batched tokens=30",
            spec,
            "register domain=10 101=ds4.layer_range mode=verify tokens=5 layer_begin=0 layer_end=8 device=0",
            verify,
            "pop domain=10",
            "pop domain=10",
            spec,
            verify,
            "pop domain=10",
            "pop domain=10",
            "register domain=10 102=moment",
            "mark domain=10 string=102",
            "register domain=10 103=ds4.request tokens=30",
            "start domain=10 id=1 category=4 string=103",
            "end domain=10 id=1",
            "push domain=10 text=free text",
            "pop domain=10",
        ]
    );
    assert_eq!(told[1], "6 6 0", "ranges opened, closed, not taken");
    let library = shim.library.display();
    assert_eq!(
        told[2],
        format!(
            "NVTX_INJECTION64_PATH={library}; tool attached through InitializeInjectionNvtx2 of \
             \"{library}\", 9 of 30 functions filled"
        )
    );
    assert_eq!(ended.stderr, "");
}

#[test]
fn token_counts_are_payloads_at_full_detail_only() {
    let shim = Shim::new();
    let (_, log) = shim.run(shim.scene("scene_everything").env("DETAIL", "full"));
    let payloads: Vec<_> = log
        .events()
        .into_iter()
        .filter(|line| ["push", "start", "mark"].iter().any(|call| line.starts_with(call)))
        .map(|line| line.split_once("payload=").map(|(_, rest)| rest.split(' ').next().unwrap()))
        .collect();
    assert_eq!(payloads, [Some("30"), Some("5"), Some("30"), Some("5"), None, Some("30"), None]);
    let (_, log) = shim.run(&mut shim.scene("scene_everything"));
    assert!(!log.0.contains("payload"), "{}", log.0);
}

/// Each function that may be missing, and what must then not be heard; the rest goes on.
#[test]
fn a_profiler_that_wants_only_some_calls_gets_just_those() {
    let shim = Shim::new();
    let all = ["thread", "create", "category", "register", "push", "pop", "start", "end", "mark"];
    let cases: [(&str, &[&str], &str); 10] = [
        ("1.14", &["thread"], "6 6 0"),
        ("5.1", &["mark"], "6 6 0"),
        ("5.2", &["start", "end"], "5 5 1"),
        ("5.3", &["start", "end"], "5 5 1"),
        ("5.4", &["push", "pop"], "1 1 5"),
        ("5.5", &["push", "pop"], "1 1 5"),
        ("5.8", &["category"], "6 6 0"),
        ("5.10", &["register"], "6 6 0"),
        ("5.12", &["create"], "6 6 0"),
        ("all", &all, "0 0 6"),
    ];
    for (omit, unheard, counters) in cases {
        let (ended, log) = shim.run(shim.scene("scene_everything").env("SHIM_OMIT", omit));
        for call in all {
            assert_eq!(log.count(call) == 0, unheard.contains(&call), "{call} without {omit}: {}", log.0);
        }
        assert_eq!(ended.told()[1], counters, "without {omit}");
        assert_eq!(ended.stderr, "", "without {omit}");
        assert!(!log.0.contains("BAD"), "{}", log.0);
    }
    let (_, log) = shim.run(shim.scene("scene_everything").env("SHIM_OMIT", "5.10,5.12"));
    assert!(
        log.0.contains(
            "push domain=0 category=3 color=ffe69f00 text=ds4.layer_range mode=verify tokens=5 layer_begin=0"
        ),
        "without registration the text itself is sent: {}",
        log.0
    );
}

#[test]
fn what_a_push_answers_means_nothing() {
    let shim = Shim::new();
    for answer in ["-2", "-1", "0", "7"] {
        let (ended, log) = shim.run(shim.scene("scene_everything").env("SHIM_PUSH", answer));
        assert_eq!((log.count("push"), log.count("pop")), (5, 5), "push answered {answer}");
        assert_eq!(ended.told()[1], "6 6 0", "push answered {answer}");
    }
}

#[test]
fn a_range_whose_id_is_zero_is_ended_too() {
    let shim = Shim::new();
    let (_, log) = shim.run(shim.scene("scene_everything").env("SHIM_ID", "0"));
    assert!(log.0.contains("end domain=10 id=0"), "{}", log.0);
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test protocol`"]
fn scene_unbalanced() {
    let nvtx = Nvtx::load_or_diagnose(Detail::Phases);
    let markers = Markers::new(&nvtx, Detail::Phases);
    let push = |name| nvtx.push(intern(&Fields::from(name)).unwrap());

    // Out of order, forgotten, twice, never taken.
    let (outer, inner) = (push("outer"), push("inner"));
    nvtx.pop(outer);
    nvtx.pop(inner);
    let parent = push("parent");
    push("forgotten");
    nvtx.pop(parent);
    nvtx.pop(parent);
    nvtx.pop(Token::NOT_TAKEN);

    // Every way out.
    let early = |leave: bool| {
        range!(markers, "early");
        if leave {
            return Err(());
        }
        Ok(())
    };
    let question = || {
        range!(markers, "question");
        early(true)?;
        early(false)
    };
    assert!(question().is_err());
    assert!(
        catch_unwind(AssertUnwindSafe(|| {
            range!(markers, "panics");
            std::panic::resume_unwind(Box::new(()));
        }))
        .is_err()
    );

    // A thread that dies with an open range takes nobody else's.
    thread::scope(|threads| {
        threads.spawn(|| {
            push("left open");
        });
    });
    markers.within("after", || ());
    tell_counters(&nvtx);
}

#[test]
fn no_pop_too_many_is_ever_sent() {
    let shim = Shim::new();
    let (ended, log) = shim.run(&mut shim.scene("scene_unbalanced"));
    let ranges: Vec<_> = log
        .events()
        .into_iter()
        .filter(|line| line.starts_with('p'))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(
        ranges,
        [
            "push", "push", "pop", "pop", // outer, inner
            "push", "push", "pop", "pop", // parent, forgotten
            "push", "push", "pop", "pop", // question, early
            "push", "pop",  // panics
            "push", // left open
            "push", "pop", // after
        ]
    );
    assert_eq!(ended.told(), ["9 8 0"]);
}

/// Opens a range when its thread ends.
struct Last<'m>(Markers<'m>);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        self.0.within("teardown", || ());
    }
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test protocol`"]
fn scene_threads() {
    static NVTX: std::sync::OnceLock<Nvtx> = std::sync::OnceLock::new();
    thread_local! {
        static LAST: std::cell::RefCell<Option<Last<'static>>> = const { std::cell::RefCell::new(None) };
    }
    let gate = std::sync::Arc::new(std::sync::Barrier::new(8));
    let work = |number| {
        let gate = gate.clone();
        move || {
            gate.wait();
            let nvtx = NVTX.get_or_init(|| Nvtx::load_or_diagnose(Detail::Phases));
            let markers = Markers::new(nvtx, Detail::Phases);
            LAST.set(Some(Last(markers)));
            markers.name_thread(&format!("worker {number}"));
            for rows in 0..4 {
                range!(markers, "round");
                range!(markers, verify(rows));
            }
        }
    };
    // Joined one by one: the end of a scope does not wait for what threads drop last.
    let threads: Vec<_> = (0..8).map(|number| thread::spawn(work(number))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    // Made again, the tool is the same and nothing is told twice.
    let again = Nvtx::load(Detail::Full).unwrap();
    assert!(again.is_attached() || Nvtx::report().variable.is_none());
    tell_counters(&again);
}

#[test]
fn eight_threads_attach_once_and_register_each_label_once() {
    let shim = Shim::new();
    for _ in 0..5 {
        let (ended, log) = shim.run(&mut shim.scene("scene_threads"));
        // The text is what follows the last number of the call.
        let texts = |call: &str, numbers: usize| -> Vec<String> {
            let lines = log.lines().into_iter().filter(|line| line.starts_with(call));
            let mut texts: Vec<_> =
                lines.map(|line| line.splitn(numbers + 1, '=').last().unwrap().to_owned()).collect();
            texts.sort();
            texts
        };
        assert_eq!(texts("create", 1), ["ds4"]);
        assert_eq!(log.count("category"), 7);
        let verify =
            |rows| format!("ds4.layer_range mode=verify tokens={rows} layer_begin=0 layer_end=8 device=0");
        let labels = [verify(0), verify(1), verify(2), verify(3), "round".into(), "teardown".into()];
        assert_eq!(texts("register", 2), labels);
        assert_eq!(texts("thread", 1), (0..8).map(|number| format!("worker {number}")).collect::<Vec<_>>());
        assert_eq!((log.count("push"), log.count("pop")), (8 * 9, 8 * 9));
        assert_eq!(ended.told(), ["72 72 0"]);
    }
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test protocol`"]
fn scene_diagnosed() {
    let loaded = |when: &str| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        println!("> loaded {when}: {}", maps.contains("a profiler.so"));
    };
    println!("> requested: {}", Nvtx::is_requested());
    println!("> {}", Nvtx::report().to_string().rsplit("; ").next().unwrap());
    loaded("before");
    for _ in 0..3 {
        say_everything(&Nvtx::load_or_diagnose(Detail::Full), Detail::Full);
    }
    thread::scope(|threads| {
        threads.spawn(|| Nvtx::load_or_diagnose(Detail::Phases));
    });
    loaded("after");
    tell_counters(&Nvtx::load_or_diagnose(Detail::Full));
    println!("> attached: {}", Nvtx::load(Detail::Full).is_ok_and(|nvtx| nvtx.is_attached()));
}

#[test]
fn whatever_is_wrong_is_said_once_and_the_work_goes_on() {
    let shim = Shim::new();
    let no_tool = Shim::compiled(&["-DENTRY=SomethingElse"]);
    let text = shim.folder().join("text.so");
    std::fs::write(&text, "no ELF file, but long enough to have been one: ".repeat(9)).unwrap();
    let missing = shim.folder().join("missing.so");
    let cases: [(&Path, &str, &[&str]); 6] = [
        (&missing, "true", &["cannot be opened", "No such file"]),
        (&text, "true", &["cannot be opened", "invalid ELF header"]),
        (shim.folder(), "true", &["cannot be opened", "irectory"]),
        (&no_tool.library, "true", &["has no InitializeInjectionNvtx2", "no NVTX tool"]),
        (&shim.library, "true", &["declined to attach"]),
        (Path::new(""), "false", &["NVTX_INJECTION64_PATH is set but empty"]),
    ];
    for (library, requested, said) in cases {
        let mut scene = shim.scene("scene_diagnosed");
        scene.env("NVTX_INJECTION64_PATH", library).env("SHIM_ANSWER", "0");
        let (ended, log) = shim.run(&mut scene);
        let diagnostic = &ended.stderr;
        assert_eq!(diagnostic.lines().count(), 1, "{library:?} is diagnosed once: {diagnostic:?}");
        assert!(diagnostic.starts_with("NVTX markers are off: "), "{diagnostic}");
        let names = [library.to_str().unwrap(), "NVTX"];
        for word in said.iter().chain(&names) {
            assert!(diagnostic.contains(word), "{library:?}: {word:?} is not in {diagnostic:?}");
        }
        let declined = library == shim.library;
        assert_eq!(
            ended.told(),
            [
                &format!("requested: {requested}"),
                "not loaded",
                "loaded before: false",
                // A library without the entry is closed again; code that ran stays.
                &format!("loaded after: {declined}"),
                "0 0 0",
                "attached: false",
            ],
            "{library:?}"
        );
        assert_eq!(log.events().len(), 0, "a tool that declined hears nothing: {}", log.0);
    }
}

#[test]
fn where_no_tool_is_named_nothing_is_said_and_nothing_heard() {
    let shim = Shim::new();
    let (ended, log) = shim.run(shim.scene("scene_diagnosed").env_remove("NVTX_INJECTION64_PATH"));
    assert_eq!(ended.stderr, "");
    assert_eq!(ended.told()[0], "requested: false");
    assert_eq!(ended.told()[3..], ["loaded after: false", "0 0 0", "attached: false"]);
    assert_eq!(log.0, "");
}

#[test]
fn a_tool_that_is_in_the_process_already_attaches() {
    for flags in [&["-DENTRY=InitializeInjectionNvtx2Preinject"][..], &["-DENTRY=any_name", "-DLINKED"][..]] {
        let shim = Shim::compiled(flags);
        let preloaded = |scene: &mut Command| {
            // LD_PRELOAD splits at blanks, and the shim's name has one.
            let library = shim.folder().join("preloaded.so");
            std::fs::copy(&shim.library, &library).unwrap();
            scene.env_remove("NVTX_INJECTION64_PATH").env("LD_PRELOAD", library);
        };
        let mut scene = shim.scene("scene_diagnosed");
        preloaded(&mut scene);
        let (ended, log) = shim.run(&mut scene);
        assert_eq!(ended.stderr, "");
        assert_eq!(ended.told()[0], "requested: true");
        assert_eq!(ended.told()[4..], ["18 18 0", "attached: true"]);
        assert_eq!(log.count("push"), 15, "{}", log.0);
        let mut scene = shim.scene("scene_everything");
        preloaded(&mut scene);
        let (ended, _) = shim.run(&mut scene);
        assert!(ended.told()[2].contains("in this process, 9 of 30"), "{}", ended.told()[2]);
    }
}
