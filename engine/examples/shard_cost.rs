//! What it costs to have a shard elsewhere: microseconds that a pass takes longer than with the same split in
//! one process, and bytes on the wire.
//!
//! `cargo run --release -p engine --example shard_cost [PASSES]` from the workspace. The chains take turns, pass
//! by pass, so that they meet the same machine; medians are printed.

#[cfg(unix)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    unix::main()
}

#[cfg(not(unix))]
fn main() {
    println!("shards in other processes need a Unix");
}

#[cfg(unix)]
mod unix {
    use std::error::Error;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::ops::Range;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Instant;

    use engine::device::cpu::Cpu;
    use engine::device::{Answer, Device, DeviceError, Input, Part, Pass, Path as Kernels, Shard, Want};
    use engine::model::Checkpoint;
    use engine::shard::{Address, Chain, Limits, Link, Listener, RemoteShard, Service, Spawned, Stop, Terms};
    use marker_core::{Markers, Phase};

    type Done<T> = Result<T, Box<dyn Error>>;

    /// Positions in the caches while passes are measured.
    const FILLED: usize = 32;
    const CONTEXT: usize = 64;

    pub(super) fn main() -> Done<()> {
        let passes = std::env::args().nth(1).map_or(Ok(2000), |text| text.parse())?;
        wire_alone(passes)?;
        pair(passes)
    }

    /// A shard whose layers do nothing: what is left is the wire.
    struct Nothing {
        part: Part,
        cached: usize,
    }

    impl Shard for Nothing {
        fn part(&self) -> &Part {
            &self.part
        }
        fn device(&self) -> u32 {
            0
        }
        fn cached(&self) -> usize {
            self.cached
        }
        fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
            if let Input::Hidden(hidden) = pass.input {
                answer.hidden.clear();
                answer.hidden.extend_from_slice(hidden);
                self.cached += 1;
            }
            Ok(())
        }
        fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
            self.cached = self.cached.min(len);
            Ok(())
        }
        fn snapshot(&mut self) -> Result<(), DeviceError> {
            Ok(())
        }
        fn restore(&mut self, _: usize) -> Result<(), DeviceError> {
            Ok(())
        }
        fn cache_rows(&mut self, _: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
            Ok((Vec::new(), Vec::new()))
        }
    }

    /// Round trips of one and of eight rows, with no layers behind them, against a call.
    fn wire_alone(passes: usize) -> Done<()> {
        println!("the wire alone, us a pass (median; 5th and 95th percentile)");
        for (width, rows) in [(384, 1), (384, 8), (4096, 1), (4096, 8)] {
            let part = || Part { layers: 0..1, embedding: false, head: false, context: 1 << 16 };
            let terms = Terms { fingerprint: 1, layers: 0..1, width };
            let folder = tempfile::tempdir()?;
            for address in [Address::Unix(folder.path().join("shard")), Address::Tcp("127.0.0.1:0".into())] {
                let listener = Listener::bind(&address, false)?;
                let (stop, stopper) = Stop::by_hand()?;
                let link = Link::Listening { address: listener.to_string().parse()?, insecure: false };
                let its_terms = terms.clone();
                let its_part = part();
                let server = std::thread::spawn(move || {
                    let mut service = Service {
                        shard: Box::new(Nothing { part: its_part, cached: 0 }),
                        terms: its_terms,
                        markers: Markers::OFF,
                        limits: Limits::default(),
                        ended: &mut || {},
                        tell: &mut |line| println!("{line}"),
                    };
                    service.listen(&listener, &stop)
                });
                let mut here = Nothing { part: part(), cached: 0 };
                let mut there = RemoteShard::connect(link, terms.clone(), Limits::default())?;
                let hidden = vec![1.0; width * rows];
                let (mut calls, mut trips) = (Vec::new(), Vec::new());
                let mut answer = Answer::default();
                for _ in 0..passes {
                    for (shard, times) in
                        [(&mut here as &mut dyn Shard, &mut calls), (&mut there, &mut trips)]
                    {
                        shard.roll_back(0)?;
                        let pass = Pass {
                            input: Input::Hidden(&hidden),
                            start: 0,
                            phase: Phase::Decode,
                            path: Kernels::Decode,
                            want: Want::Hidden,
                        };
                        let began = Instant::now();
                        shard.forward(&pass, &mut answer)?;
                        times.push(began.elapsed().as_secs_f64() * 1e6);
                    }
                }
                let kind = if matches!(address, Address::Unix(_)) { "unix" } else { "tcp" };
                let (base, (low, median, high)) = (percentiles(&mut calls).1, percentiles(&mut trips));
                println!(
                    "  {kind:5} {rows} x {width}: {:.1} ({:.1} to {:.1}) above a call",
                    median - base,
                    low - base,
                    high - base
                );
                drop(there);
                drop(stopper);
                let _ = server.join();
            }
        }
        Ok(())
    }

    /// Decode passes of the shipped target over 0..4 and 4..8, the second half here or elsewhere.
    fn pair(passes: usize) -> Done<()> {
        let model = PathBuf::from("models/pair/target");
        let checkpoint = Checkpoint::open(&model)?;
        let width = checkpoint.config().hidden;
        let cpu = Cpu::new(1);
        let folder = tempfile::tempdir()?;
        let unix = Process::start(&model, &format!("unix:{}/shard", folder.path().display()))?;
        let tcp = Process::start(&model, "tcp:127.0.0.1:0")?;
        let counted = Process::start(&model, "tcp:127.0.0.1:0")?;
        let (relay, bytes) = relay(&counted.address)?;

        let part = |layers: Range<usize>, embedding, head| Part { layers, embedding, head, context: CONTEXT };
        let load = |part| cpu.load(&checkpoint, part);
        let remote = |link| -> Done<Chain> {
            let terms = Terms { fingerprint: checkpoint.fingerprint(), layers: 4..8, width };
            let there = RemoteShard::connect(link, terms, Limits::default())?;
            let shards: Vec<Box<dyn Shard>> = vec![load(part(0..4, false, false))?, Box::new(there)];
            Ok(Chain::with_ends(checkpoint.config(), load(part(0..0, true, true))?, shards)?)
        };
        let listening = |address: &Address| Link::Listening { address: address.clone(), insecure: false };
        let args = ["shard", "--listen", "inherited", "--threads", "1", "--layers", "4..8", "--model"];
        let args = args.iter().map(Into::into).chain([model.clone().into()]).collect();
        let child = Spawned::start("spawn:cpu".into(), program()?, args, &Limits::default())?;

        let here = vec![load(part(0..4, true, false))?, load(part(4..8, false, true))?];
        let mut chains = [
            ("one process", Chain::new(checkpoint.config(), here)?),
            ("spawned", remote(Link::Spawned(child))?),
            ("unix", remote(listening(&unix.address))?),
            ("tcp", remote(listening(&tcp.address))?),
        ];
        let text: Vec<u32> = (100..100 + FILLED as u32).collect();
        let pass = |chain: &mut Chain, rows: &[u32]| {
            let want = Want::Tokens(0..rows.len());
            chain.forward(Markers::OFF, Phase::Decode, Kernels::Decode, rows, &want).map(|_| ())
        };
        for rows in [1, 5] {
            let mut times = chains.each_ref().map(|_| Vec::new());
            for (_, chain) in &mut chains {
                chain.roll_back(0)?;
                pass(chain, &text)?;
            }
            for _ in 0..passes {
                for ((_, chain), times) in chains.iter_mut().zip(&mut times) {
                    chain.roll_back(FILLED)?;
                    let began = Instant::now();
                    pass(chain, &text[..rows])?;
                    times.push(began.elapsed().as_secs_f64() * 1e6);
                }
            }
            println!("pair/target over 0..4 and 4..8, {rows} rows a pass, one thread a process, us a pass");
            let base = percentiles(&mut times[0]).1;
            for ((name, _), times) in chains.iter().zip(&mut times) {
                let (_, median, _) = percentiles(times);
                println!("  {name:12} {median:8.1}  {:+7.1}", median - base);
            }
        }

        let mut chain = remote(Link::Listening { address: relay, insecure: false })?;
        pass(&mut chain, &text)?;
        let before = [bytes[0].load(Relaxed), bytes[1].load(Relaxed)];
        for row in 0..16 {
            pass(&mut chain, &text[row..=row])?;
        }
        let sent = [bytes[0].load(Relaxed) - before[0], bytes[1].load(Relaxed) - before[1]];
        let least = 4 * width as u64;
        println!("bytes a token: {} there and {} back; hidden x 4 is {least}", sent[0] / 16, sent[1] / 16);
        Ok(())
    }

    /// A TCP relay to `shard` that counts the bytes there and back.
    fn relay(shard: &Address) -> Done<(Address, Arc<[AtomicU64; 2]>)> {
        let Address::Tcp(shard) = shard.clone() else { return Err("the counted shard is at TCP".into()) };
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = Address::Tcp(listener.local_addr()?.to_string());
        let bytes: Arc<[AtomicU64; 2]> = Arc::default();
        let counts = Arc::clone(&bytes);
        std::thread::spawn(move || -> std::io::Result<()> {
            let (parent, _) = listener.accept()?;
            let shard = TcpStream::connect(shard)?;
            let (back_from, back_to) = (shard.try_clone()?, parent.try_clone()?);
            let back = Arc::clone(&counts);
            std::thread::spawn(move || pump(&back_from, &back_to, &back[1]));
            pump(&parent, &shard, &counts[0])
        });
        Ok((address, bytes))
    }

    fn pump(mut from: &TcpStream, mut to: &TcpStream, count: &AtomicU64) -> std::io::Result<()> {
        let mut chunk = vec![0; 1 << 16];
        loop {
            let read = from.read(&mut chunk)?;
            if read == 0 {
                return to.shutdown(Shutdown::Both);
            }
            count.fetch_add(read as u64, Relaxed);
            to.write_all(&chunk[..read])?;
        }
    }

    /// The binary beside this example.
    fn program() -> Done<PathBuf> {
        let program = std::env::current_exe()?.with_file_name("../phasemark");
        if program.exists() {
            Ok(program)
        } else {
            Err("build the binary first: cargo build --release".into())
        }
    }

    struct Process {
        child: Child,
        address: Address,
    }

    impl Process {
        fn start(model: &Path, address: &str) -> Done<Self> {
            let mut child = Command::new(program()?)
                .args(["shard", "--layers", "4..8", "--threads", "1", "--listen", address, "--model"])
                .arg(model)
                .stderr(Stdio::piped())
                .spawn()?;
            let mut line = String::new();
            BufReader::new(child.stderr.take().ok_or("no standard error")?).read_line(&mut line)?;
            let address =
                line.trim_end().strip_prefix("listening on ").ok_or_else(|| line.clone())?.parse()?;
            Ok(Process { child, address })
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// The 5th, 50th and 95th percentile.
    fn percentiles(times: &mut [f64]) -> (f64, f64, f64) {
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times[(times.len() - 1) * part / 100];
        (at(5), at(50), at(95))
    }
}
