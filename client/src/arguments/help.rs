//! Texts behind the options of a command: examples, exit codes.

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  status --ready: the supervisor answers and is not ready to take calls
  2  the command line is wrong
  3  refused: bad input, nothing ran
  4  failed while running: kernel fault, deadline, overrun, worker or session lost, cancelled, internal error
  5  the supervisor cannot be reached, or does not answer
  6  status --ready: it is draining

What cures each code of an error, such as [DEADLINE_EXCEEDED]:
docs/errors.md";

pub(super) const EXAMPLES: &str = "\
Examples:
  pappus demo                                   see it work, without a GPU and without a supervisor
  pappus function check matmul.json --input 'A=i64[16385]:a.npy'
  export PAPPUS_SOCKET=/run/pappus/pappus.sock
  pappus function add matmul matmul.json
  pappus invoke matmul --input A=a.npy --output B=b.npy
  pappus --socket /run/pappus/pappus.sock.admin drain
";

pub(super) const INVOKE_EXAMPLES: &str = "\
Examples:
  pappus invoke matmul --input A=a.npy --output B=b.npy
  pappus invoke resize --input A=head.bin,tail.bin --output B=b.bin --deadline 500ms
  pappus invoke matmul --input A=a.bin --repeat 1000 --json
  pappus invoke vec_add --input A=f32:1,2,3 --input B=f32:4,5,6 --output C=-
  produce | pappus invoke resize --input 'A=u8[224,224,3]:-' --output B=- | consume

Behind NAME= stands one of
  FILE[,FILE...]       files, concatenated: of a .npy file its array, of any other all bytes
  -                    stdin to its end; pipes that have a name, too; bytes that start as a .npy file are read as one
  TYPE:N[,N...]        numbers: u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool
  TYPE[SHAPE]:FILE     a file that must hold this, such as i64[128,128]:a.npy
  text:ANYTHING        these bytes

Of a .png FILE the pixels are passed: u8, rows, columns and, if not gray, channels.

An output is written raw, or as .npy or .png where FILE ends so and the blueprint gives its type. With - it goes to
stdout, and messages go to stderr; with - and --json its numbers are part of the object.";

pub(super) const CHECK_EXAMPLES: &str = "\
Examples:
  pappus function check inference.json
  pappus function check inference.json --input size=i64:224,224 --input times=i64:1 --input A=200712 --input B=108
  pappus function check matmul.json --input 'A=i64[16385]:a.npy'
  pappus function check resnet18.pappus
  pappus function check kernels/configs

With FILE, the words that sizes are computed from are read; with SIZE only the number of bytes is known. What else may
stand there: pappus invoke --help. Module files that lie beside the configuration are opened: they must hold the
kernels, which must take what the blueprint passes, as far as the file tells.";

pub(super) const PLAN_EXAMPLES: &str = "\
Examples:
  pappus plan --gpu H200 --tenants 64                         # how many stay resident
  pappus plan --gpu H200 --tenants 64 --call 256MiB --in-flight 8 --busy 16 --weights 1GiB
  pappus plan --gpu H100 --gpus 4 --tenants 300 --json
  pappus plan --gpu-memory 24GiB --tenants 8 --context 400MiB

Exit code 0 also where something is short: the lines that begin with `short:` say what, and what helps.
docs/runbook.md says which figures stand behind it.";

pub(super) const READY: &str = "\
With --ready, nothing is shown; the exit code says whether calls can be made:
  0  ready: not draining, and a worker or a standby is up
  1  not ready yet, with the reason on stderr
  5  no supervisor answers, within 2s unless --patience gives it longer
  6  draining: accepted calls are answered, no more are taken

Example:
  pappus status --ready";

pub(super) const SETTINGS: &str = "\
Settings:
  queue-calls=N              most invocations that may wait on one device
  queue-bytes=SIZE           most inline bytes that may wait on one device, such as 256MiB
  default-deadline=TIME      deadline of invocations that name none, such as 30s
  max-deadline=TIME          longest deadline that an invocation may ask for
  log=LEVEL                  lines of the log that are written: error, warn, info, debug or trace
  poll-us=N                  how long idle workers spin before they block, in microseconds
  overrun-limit=TIME         how long a call may keep others from a device that takes turns, such as 2s; 0: for ever
  cancel-grace=TIME          how long a cancelled call may run on before its worker is replaced, such as 500ms
  quarantine-after=N         failures in a row after which a function is refused to its caller for a while; 0: never
  fault-budget=N             worker processes a minute that may end under one caller; 0: any number
  metrics-of=WHOSE           whose calls the metrics count one by one: devices, tenants or functions
  kept-versions=N            older versions of a function that are kept when it is replaced; 0: none
  session-idle=TIME          how long a session may be without a call before it ends, such as 10m
  session-grace=TIME         how long a drain waits for open sessions, whose calls go on meanwhile, such as 30s

They last until the supervisor ends; its flags and configuration file set them for every start.

Example:
  pappus --socket /run/pappus/pappus.sock.admin settings poll-us=50 default-deadline=10s";

pub(super) const DEVICE_SETTINGS: &str = "\
Settings, as behind --device:
  workers=N                  the most worker processes; fewer: those worth least take no more calls and end when idle
  lanes=N                    concurrent calls of one worker of a GPU; processes that serve are replaced when idle
  memory=SIZE                what Pappus may use of the device; less: taken back from lanes without calls first
  standbys=N                 processes kept ready to take a worker's place
  quantum=TIME               how long a turn lasts while others wait, such as 1ms
  min-residency=TIME         how long a tenant keeps a worker that another one waits for, such as 100ms

All of them change, or none. They last until the supervisor ends or reads a configuration file that says otherwise.

Examples:
  pappus --socket /run/pappus/pappus.sock.admin device set cuda:0
  pappus --socket /run/pappus/pappus.sock.admin device set cuda:0 workers=16 quantum=1ms";
