//! What is refused when a function is read, and where.

use super::{launch, launch_as, mistake, mistakes, with, with_steps};
use crate::{Isolation, Sizes, limits, parse};

/// Parsing fails at `path`, saying `words`.
fn check(json: &str, path: &str, words: &str) {
    let error = mistake(json);
    assert_eq!(error.path, path, "{error}");
    assert!(error.message.contains(words), "{error}");
}

/// The same for the arguments of the only launch.
fn check_argument(arguments: &str, path: &str, words: &str) {
    let path = format!("blueprint.control_flow[0].ExecKernel[1]{path}");
    check(&with_steps(&launch(arguments)), &path, words);
}

fn accept(json: &str) {
    if let Err(error) = parse(json.as_bytes()) {
        panic!("{error}");
    }
}

#[test]
fn display_names_the_place() {
    let error = mistake(&with_steps(&launch(r#"{"Ptr": "C"}"#)));
    assert_eq!(
        error.to_string(),
        "at blueprint.control_flow[0].ExecKernel[1][0].Ptr: unknown buffer \"C\"; expected an input, a weight or a \
         buffer: \"cfg\", \"A\", \"W\", \"B\""
    );
    assert_eq!(
        mistakes(" \n{}").lines("f.json:").lines().next(),
        Some("f.json:2:1: the key \"kernels\" is missing in a configuration")
    );
}

#[test]
fn every_mistake_is_told_at_once_with_its_place_in_the_text() {
    let json = r#"{
  "module_path": "m.ptx", "kernel": [],
  "kernels": ["k", 5],
  "blueprint": {
    "inputs": ["A", "é"],
    "buffers": {"B": {"Sizeoff": "A"}, "C": {"Sizeof": "D"}, "E": 18446744073709551616},
    "outputs": ["b"],
    "types": {"A": {"dtype": "float32", "shape": [{"Free": "n"}]}, "é": {"dtype": "f32"}},
    "control_flow": [
      {"ExecKernel": ["k", [{"Ptr": "A"}, {"I32": 4294967296}, 7, {"Ptr": "Q"}], {"grid_dim_x": {"Free": "n"}, "block_dim": 32}]},
      {"ExecKernel": ["k", [], {"grid_dim_x": 0, "block_dim_x": "x", "grid_dim_y": {"Free": "m"}}]},
      {"Copy": {"from": "A"}},
      "stop"
    ]
  }
}"#;
    let found = mistakes(json);
    let told: Vec<_> =
        found.iter().map(|one| (one.position.unwrap().to_string(), one.message.clone())).collect();
    let expected = [
        ("2:27", "unknown key \"kernel\", did you mean \"kernels\"?"),
        ("3:20", "found the number 5, expected a name in double quotes, or an object"),
        ("6:23", "unknown size \"Sizeoff\", did you mean \"Sizeof\"?"),
        ("6:56", "unknown buffer \"D\""),
        ("6:67", "the value is 18446744073709551616, expected 0 to 18446744073709551615"),
        ("7:17", "unknown buffer \"b\", did you mean \"B\"?"),
        ("8:30", "unknown type of an element \"float32\""),
        ("10:51", "the value is 4294967296, expected -2147483648 to 2147483647"),
        ("10:64", "found the number 7, expected an argument such as {\"Ptr\": \"A\"}"),
        ("10:75", "unknown buffer \"Q\""),
        ("10:82", "the key \"block_dim_x\" is missing in a launch"),
        ("10:112", "unknown key \"block_dim\", did you mean \"block_dim_x\"?"),
        ("11:47", "the value is 0, expected 1 to 2147483647"),
        ("11:65", "found the text \"x\", expected a size such as 12"),
        ("12:16", "the key \"to\" is missing in a copy"),
        ("13:7", "found the text \"stop\", expected a step such as"),
    ];
    for ((at, message), (place, words)) in told.iter().zip(expected) {
        assert_eq!(at, place, "{message}");
        assert!(message.contains(words), "{at}: {message}");
    }
    // Free dimensions may be unknown because the type that names them could not be read: of them nothing is told.
    assert_eq!((told.len(), found.more()), (expected.len(), 0), "{found}");
    let many = vec![r#"{"Ptr": "Z"}"#; 300].join(",");
    let many = mistakes(&with_steps(&launch(&many)));
    assert_eq!((many.iter().count(), many.more()), (limits::MISTAKES, 300 - limits::MISTAKES));
    assert!(many.to_string().ends_with("\nand 280 more"), "{many}");
}

#[test]
fn no_message_speaks_the_language_of_parsers() {
    let whole = with_steps(&format!(
        r#"{{"Repeat": [2, [{}, {{"Fill": {{"buffer": "B", "byte": 1}}}}]]}}"#,
        launch(r#"{"I32": 1}, {"F32": 0.5}, {"Ptr": {"buffer": "A", "offset": 0}}"#)
    ));
    accept(&whole);
    // Every value, replaced by one of each kind, and every byte, replaced by one that means something to a parser.
    for at in 0..whole.len() {
        for by in ["null", "5", "\"x\"", "[]", "{}", ",", "}", "-", "'"] {
            let changed = format!("{}{by}{}", &whole[..at], &whole[at + 1..]);
            let Err(found) = parse(changed.as_bytes()) else { continue };
            let text = found.to_string();
            for words in [
                "variant",
                "tuple",
                "untagged",
                "field `",
                "invalid type",
                "invalid length",
                "EOF",
                "serde",
                "u64",
            ] {
                assert!(!text.contains(words), "{text} in {changed}");
            }
        }
    }
}

#[test]
fn a_byte_order_mark_is_passed_over_and_other_encodings_are_named() {
    let json = with_steps(&launch(r#"{"Ptr": "C"}"#));
    let marked = [b"\xef\xbb\xbf", json.as_bytes()].concat();
    assert_eq!(parse(&marked).unwrap_err(), mistakes(&json));
    let utf16: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(parse(&utf16).unwrap_err().to_string(), "the text is UTF-16: save it as UTF-8");
    let latin = parse(b"{\n \"a\xe9\"").unwrap_err();
    assert_eq!(latin.to_string(), "2:4: bytes that are no UTF-8: save the text as UTF-8");
}

#[test]
fn malformed_json_is_refused_with_its_place() {
    check("", "", "it is no JSON: the text ends, expected a value");
    check("[]", "", "found a list, expected a configuration, which is an object");
    check_argument(r#"{"U64": {"FromInput": ["cfg", 0]}}"#, "[0].U64.FromInput", "which is an object");
    check_argument(
        r#"{"Ptr": ["A", {"Absolute": 0}]}"#,
        "[0].Ptr",
        "expected a name in double quotes, or an object",
    );
    check_argument(r#"{"Struct": [8, 8, []]}"#, "[0].Struct", "which is an object");
    let null = with_steps(r#"{"Copy": {"from": "A", "to": "B", "bytes": null}}"#);
    check(&null, "blueprint.control_flow[0].Copy.bytes", "found null, expected a size");
    check(&format!("{} x", with_steps("")), "", "expected the end of the text, found 'x'");
    check(&with_steps("")[..100], "", "a text that does not end");
    check(&with_steps("").replace("[\"cfg\", \"A\"]", "\"A\""), "blueprint.inputs", "expected a list");
    check(&with_steps(&"[".repeat(1000)), "", "one more object or list inside others, expected at most 128");
    let deep = format!("{}{}", r#"{"Repeat":[{"Absolute":1},["#.repeat(1000), "]]}".repeat(1000));
    check(&with_steps(&deep), "", "expected at most 128");
    check(&" ".repeat(limits::JSON_BYTES + 1), "", "expected at most 4194304");
    check("x", "", "it is no JSON: expected a value, found 'x'");
}

#[test]
fn a_size_is_a_number_or_an_object() {
    for short in [
        with(r#""B": 8"#, ""),
        with_steps(&launch_as("", "1")),
        with(r#""B": {"CeilDiv": [{"Sizeof": "A"}, 4]}"#, ""),
        with_steps(r#"{"Repeat": [3, []]}"#),
        with_steps(r#"{"ExecKernel": ["k", [], {"grid_dim_x": 1, "block_dim_x": 32}]}"#),
    ] {
        accept(&short);
    }
    check_argument("4", "[0]", "found the number 4, expected an argument such as");
    check(
        &with(r#""B": "A""#, ""),
        "blueprint.buffers.B",
        "found the text \"A\", expected a size such as 12",
    );
    check(&with(r#""B": -1"#, ""), "blueprint.buffers.B", "the value is -1, expected 0 to");
    let both = |launch: &str| {
        let json = with_steps(&format!(r#"{{"ExecKernel": ["k", [], {launch}]}}"#));
        let blueprint = parse(json.as_bytes()).unwrap();
        blueprint.plan(&Sizes { inputs: &[32, 100], weights: &[10], words: &[], free: &[] }).unwrap().steps
    };
    let long = r#"{"grid_dim_x": {"Absolute": 3}, "grid_dim_y": {"Absolute": 1}, "grid_dim_z": {"Absolute": 1},
        "block_dim_x": {"Absolute": 32}, "block_dim_y": {"Absolute": 1}, "block_dim_z": {"Absolute": 1},
        "shared_mem_bytes": {"Absolute": 0}}"#;
    assert_eq!(both(r#"{"grid_dim_x": 3, "block_dim_x": 32}"#), both(long));
}

#[test]
fn names_that_read_as_others_are_refused() {
    let json = with_steps("");
    for name in ["\\u202eA", "A\\u2066", "A\\u200b", "\\ufeffA", "A\\u2028", "A\\u007f", "\u{202e}A"] {
        let error = mistake(&json.replace("cfg", name));
        assert_eq!(error.path, "blueprint.inputs[0]");
        assert!(error.message.contains("without characters that cannot be seen"), "{error}");
        let shown = error.to_string();
        assert!(!shown.contains(crate::error::is_deceptive), "{shown:?}");
    }
    accept(&json.replace(r#""cfg""#, "\"größe ∑ 数\""));
}

#[test]
fn keys_are_known_and_come_once() {
    let json = with_steps("");
    check(
        &json.replacen('{', r#"{"modul": 1, "#, 1),
        "modul",
        "unknown key \"modul\", did you mean \"modules\"?",
    );
    check(&json.replacen('{', r#"{"kernels": [], "#, 1), "kernels", "the key \"kernels\" a second time");
    let twice = json.replace(r#""weights""#, r#""inputs""#);
    assert_eq!(mistakes(&twice).first().path, "blueprint.inputs");
    let twice = with(r#""B": {"Absolute": 1}, "B": {"Absolute": 2}"#, "");
    check(&twice, "blueprint.buffers.B", "a second time");
    let dims = launch("").replace("grid_dim_x", "grid_dim_w");
    let both = mistakes(&with_steps(&dims));
    let told: Vec<_> = both.iter().map(|one| one.message.split(';').next().unwrap()).collect();
    let known = "unknown key \"grid_dim_w\", did you mean \"grid_dim_x\"?";
    assert_eq!(told, ["the key \"grid_dim_x\" is missing in a launch", known]);
    check_argument(r#"{"Ptr": {"buffer": "A", "offset": {"Absolute": 1}, "x": 1}}"#, "[0].Ptr.x", "unknown");
    check_argument(
        r#"{"I32": {"Absolute": 1, "Sizeof": "A"}}"#,
        "[0].I32",
        "a second key \"Sizeof\" in a size",
    );
    check_argument(r#"{"Ptr": "A", "Ptr": "A"}"#, "[0]", "a second key");
    check_argument(r#"{}"#, "[0]", "an empty object, expected an argument such as");
    check_argument(
        r#"{"Pointer": "A"}"#,
        "[0].Pointer",
        "unknown argument \"Pointer\"; known: \"Ptr\", \"Sizeof\"",
    );
    check(&with_steps(r#""A""#), "blueprint.control_flow[0]", "a step such as {\"ExecKernel\": [\"kernel\"");
    let two = with_steps(r#"{"ExecKernel": ["k", []]}"#);
    check(
        &two,
        "blueprint.control_flow[0].ExecKernel",
        "a list of 2, expected a list of 3: [\"kernel\", [arguments], {launch}]",
    );
    check(
        &with(r#""B": {"Sizeof": 5}"#, ""),
        "blueprint.buffers.B.Sizeof",
        "expected a name in double quotes",
    );
    let b = |written: &str, words: &str| {
        check(
            &with(&format!(r#""B": {{"Absolute": {written}}}"#), ""),
            "blueprint.buffers.B.Absolute",
            words,
        );
    };
    b("-5", "the value is -5, expected 0 to 18446744073709551615");
    b("18446744073709551616", "the value is 18446744073709551616, expected 0 to 18446744073709551615");
    b("1.5", "the value is 1.5, expected a whole number");
    b("1e3", "the value is 1e3, expected a whole number");
    check(&with(r#""B": {"CeilDiv": [{"Absolute": 1}]}"#, ""), "blueprint.buffers.B.CeilDiv", "a list of 1");
}

#[test]
fn modules_and_kernels_are_named_and_found() {
    let module = r#""module_path": "m.ptx""#;
    let json = with_steps("");
    let two = r#""modules": [{"module_name": "m", "path": "m"}, {"module_name": "n", "path": "n"}]"#;
    check(&json.replace(module, r#""module_path": """#), "module_path", "expected 1 to 4096 bytes");
    check(&json.replace(module, &format!("{module}, {two}")), "", "expected one of them");
    check(&json.replace(&format!("{module},"), ""), "", "expected `module_path` or `modules`");
    check(&json.replace(module, two), "kernels[0]", "a name alone");
    let first = mistakes(&json.replace(module, &two.replace("path", "file"))).first().to_string();
    assert!(first.contains("the key \"path\" is missing in a module"), "{first}");
    let same = two.replace(r#""n""#, r#""m""#);
    let kernel = |kernel: &str| json.replace(module, two).replace(r#""k""#, kernel);
    let of_n = r#"{"module_name": "n", "kernel_name": "k"}"#;
    accept(&kernel(of_n));
    check(
        &json.replace(module, &same).replace(r#""k""#, &of_n.replace(r#""n""#, r#""m""#)),
        "modules[1].module_name",
        "a second time",
    );
    check(&kernel(r#"{"module_name": "o", "kernel_name": "k"}"#), "kernels[0].module_name", "unknown module");
    check(&kernel(r#"{"module_name": "n", "kernel_name": ""}"#), "kernels[0].kernel_name", "1 to 255 bytes");
    check(
        &kernel(r#"{"module_name": "n", "kernel_name": "k", "alias": ""}"#),
        "kernels[0].alias",
        "1 to 255 bytes",
    );
    let both = r#"{"module_name": "m", "kernel_name": "k"}, {"module_name": "n", "kernel_name": "k"}"#;
    check(&kernel(both), "kernels[1]", "an `alias` gives one");
    accept(&kernel(&both.replace(r#""k"}, "#, r#""k", "alias": "k2"}, "#)));
    check(&json.replace(r#""k""#, "7"), "kernels[0]", "expected a name in double quotes, or an object");
    let many: Vec<String> = (0..=limits::KERNELS).map(|k| format!("\"k{k}\"")).collect();
    check(&json.replace(r#""k""#, &many.join(",")), "kernels", "one more entry, expected at most 1024");
    let many: Vec<_> = (0..=limits::MODULES).map(|_| r#"{"module_name": "m", "path": "m"}"#).collect();
    check(
        &json.replace(module, &format!(r#""modules": [{}]"#, many.join(","))),
        "modules",
        "expected at most 512",
    );
}

#[test]
fn names_are_known_and_come_once() {
    let json = with_steps("");
    check(&json.replace(r#""cfg""#, r#""A""#), "blueprint.inputs[1]", "a second time");
    check(&json.replace(r#""W""#, r#""A""#), "blueprint.weights[0]", "a second time");
    check(&with(r#""B": 1"#, "").replace(r#""A"]"#, r#""B"]"#), "blueprint.buffers.B", "a second time");
    check(&json.replace(r#""cfg""#, r#""""#), "blueprint.inputs[0]", "1 to 255 bytes");
    check(&json.replace(r#""cfg""#, r#""a\n""#), "blueprint.inputs[0]", "control characters");
    let long = format!("\"{}\"", "x".repeat(limits::NAME_BYTES + 1));
    check(&json.replace(r#""cfg""#, &long), "blueprint.inputs[0]", "1 to 255 bytes");
    let odd = with(r#""B": {"Absolute": 1}, "a.b": {"Sizeof": "C"}"#, "");
    check(&odd, r#"blueprint.buffers["a.b"].Sizeof"#, "unknown buffer \"C\"");
    check(&json.replace(r#"["B"]"#, r#"["C"]"#), "blueprint.outputs[0]", "unknown buffer");
    check(&json.replace(r#"["B"]"#, r#"["A", "A"]"#), "blueprint.outputs[1]", "a second time");
    check(&json.replace(r#"["B"]"#, r#"["W"]"#), "blueprint.outputs[0]", "is a weight");
    let many: Vec<String> = (0..=limits::INPUTS).map(|i| format!("\"i{i}\"")).collect();
    let inputs = with(r#""B": 1"#, "").replace(r#""cfg", "A""#, &many.join(","));
    check(&inputs, "blueprint.inputs", "one more entry, expected at most 1024");
    let buffers: Vec<String> = (0..=limits::OUTPUTS).map(|i| format!("\"b{i}\": 1")).collect();
    let many: Vec<String> = (0..=limits::OUTPUTS).map(|i| format!("\"b{i}\"")).collect();
    let outputs = with(&buffers.join(","), "").replace(r#"["B"]"#, &format!("[{}]", many.join(",")));
    check(&outputs, "blueprint.outputs", "one more entry, expected at most 1024");
    let many: Vec<String> = (0..limits::BUFFERS - 2).map(|i| format!("\"i{i}\"")).collect();
    check(&json.replace(r#""W""#, &many.join(",")), "blueprint", "4097 inputs, weights, state and buffers");
}

#[test]
fn what_a_tenant_wrote_is_cut_and_cleaned() {
    let key = "x\\n".repeat(100_000);
    let found = mistakes(&format!(r#"{{"{key}": 1}}"#));
    assert_eq!(found.iter().count(), 4);
    for error in found.iter() {
        assert!(error.path.len() < 1100 && error.message.len() < 1100);
        assert!(!error.to_string().contains(char::is_control));
    }
}

#[test]
fn weight_files_and_types_name_known_buffers() {
    let json = with_steps("");
    let files = |files: &str| json.replacen('{', &format!(r#"{{"weight_files": {{{files}}}, "#), 1);
    accept(&files(r#""W": "w.npy""#));
    check(&files(r#""A": "w.npy""#), "weight_files.A", "not a weight");
    check(&files(r#""X": "w.npy""#), "weight_files.X", "not a weight");
    check(&files(r#""W": """#), "weight_files.W", "expected 1 to 4096");
    check(&files(r#""W": "w", "W": "v""#), "weight_files.W", "a second time");
    let types = |types: &str| json.replace(r#""weights""#, &format!(r#""types": {{{types}}}, "weights""#));
    accept(&types(r#""A": {"dtype": "bf16"}, "W": {"dtype": "bool", "shape": [{"Sizeof": "W"}]}"#));
    check(&types(r#""X": {"dtype": "f32"}"#), "blueprint.types.X", "unknown buffer");
    check(&types(r#""A": {"dtype": "float"}"#), "blueprint.types.A.dtype", "unknown type of an element");
    check(&types(r#""A": {"shape": []}"#), "blueprint.types.A", "the key \"dtype\" is missing in a type");
    check(&types(r#""A": {"dtype": "f32"}, "A": {"dtype": "f32"}"#), "blueprint.types.A", "a second time");
    check(
        &types(r#""A": {"dtype": "f32", "shape": ["n"]}"#),
        "blueprint.types.A.shape[0]",
        "expected a size such as",
    );
    let dims = vec![r#"{"Absolute": 1}"#; limits::RANK + 1].join(",");
    let shape = format!(r#""A": {{"dtype": "f32", "shape": [{dims}]}}"#);
    check(&types(&shape), "blueprint.types.A.shape", "expected at most 32");
}

#[test]
fn a_malformed_size_is_refused_with_its_place() {
    let b = |sizing: &str, path: &str, words: &str| {
        check(&with(&format!("\"B\": {sizing}"), ""), &format!("blueprint.buffers.B{path}"), words);
    };
    b(r#"{"Sizeof": "B"}"#, "", "(B → B)");
    b(r#"{"Sum": []}"#, ".Sum", "at least one");
    b(r#"{"Min": [{"Absolute": 1}, {"Sizeof": "X"}]}"#, ".Min[1].Sizeof", "unknown buffer");
    b(r#"{"FromInput": {"bufname": "X", "idx": 0}}"#, ".FromInput.bufname", "unknown buffer");
    b(r#"{"FromInput": {"bufname": "W", "idx": 0}}"#, ".FromInput.bufname", "is not an input");
    b(r#"{"FromInput": {"bufname": "B", "idx": 0}}"#, ".FromInput.bufname", "is not an input");
    b(r#"{"FromInput": {"bufname": "A", "idx": 137438953472}}"#, ".FromInput.idx", "at most 137438953471");
    b(r#"{"FromInput": {"bufname": "A", "idx": 1, "index": 1}}"#, ".FromInput.index", "unknown key");
    b(r#"{"CeilDiv": [{"Absolute": 1}, {"Absolute": 0}]}"#, ".CeilDiv", "divided by zero");
    b(
        r#"{"CeilDiv": [{"Sizeof": "A"}, {"Absolute": 0}]}"#,
        ".CeilDiv",
        "the divisor is 0, expected at least 1",
    );
    for division in ["FloorDiv", "Mod"] {
        let by_zero = |dividend: &str| format!(r#"{{"{division}": [{dividend}, {{"Absolute": 0}}]}}"#);
        b(&by_zero(r#"{"Absolute": 1}"#), &format!(".{division}"), "1 is divided by zero");
        b(&by_zero(r#"{"Sizeof": "A"}"#), &format!(".{division}"), "the divisor is 0");
    }
    b(r#"{"Sub": [{"Absolute": 3}, {"Absolute": 5}]}"#, ".Sub", "3 − 5 is negative, expected at least 0");
    b(r#"{"Sub": [{"Absolute": 3}]}"#, ".Sub", "a list of 1");
    b(r#"{"Mod": [{"Absolute": 3}, {"Sizeof": "X"}]}"#, ".Mod[1].Sizeof", "unknown buffer");
    b(r#"{"Max": []}"#, ".Max", "at least one");
    b(
        r#"{"Sum": [{"Absolute": 1}, {"Product": [{"Absolute": 4294967296}, {"Absolute": 4294967296}]}]}"#,
        ".Sum[1].Product",
        "too large",
    );
    b(r#"{"Sum": [{"Absolute": 18446744073709551615}, {"Absolute": 1}]}"#, ".Sum", "too large");
    b(r#"{"Absolute": 1099511627777}"#, "", "expected at most 1099511627776");
    let nested = |depth: usize| {
        format!("{}{}{}", r#"{"Sum":["#.repeat(depth), r#"{"Absolute":1}"#, "]}".repeat(depth))
    };
    accept(&with(&format!("\"B\": {}", nested(limits::SIZING_DEPTH - 1)), ""));
    b(&nested(limits::SIZING_DEPTH), &".Sum[0]".repeat(limits::SIZING_DEPTH), "expected at most 16");
    let cycle = r#""B": {"Sub": [{"Absolute": 9}, {"Sizeof": "C"}]}, "C": {"Max": [{"Sizeof": "B"}]}"#;
    check(&with(cycle, ""), "blueprint.buffers.B", "(B → C → B)");
    let cycle =
        r#""B": {"Sizeof": "C"}, "C": {"Sum": [{"Sizeof": "A"}, {"Sizeof": "D"}]}, "D": {"Sizeof": "C"}"#;
    check(&with(cycle, ""), "blueprint.buffers.C", "(C → D → C)");
}

#[test]
fn sizes_are_limited() {
    let words = |count: usize| {
        let words = (0..count).map(|i| format!(r#"{{"FromInput": {{"bufname": "A", "idx": {i}}}}}"#));
        format!(r#""B": {{"Sum": [{}]}}"#, words.collect::<Vec<_>>().join(","))
    };
    accept(&with(&words(limits::WORDS), ""));
    check(&with(&words(limits::WORDS + 1), ""), "blueprint.buffers.B.Sum[1024].FromInput", "at most 1024");
    let sums = vec![r#"{"Sizeof": "A"}"#; limits::COMPUTED_SIZES + 2].join(",");
    check(&with(&format!(r#""B": {{"Sum": [{sums}]}}"#), ""), "blueprint.buffers.B.Sum", "at most 65536");
}

#[test]
fn a_long_chain_of_sizes_is_no_recursion() {
    let last = limits::BUFFERS - 4;
    let chain =
        (0..last).map(|i| format!(r#""b{i}": {{"Sum": [{{"Sizeof": "b{}"}}, {{"Absolute": 1}}]}}"#, i + 1));
    let chain: Vec<String> = chain.collect();
    let buffers = format!(r#"{}, "b{last}": {{"Sizeof": "A"}}"#, chain.join(","));
    accept(&with(&buffers, "").replace(r#"["B"]"#, r#"["b0"]"#));
}

#[test]
fn a_malformed_step_is_refused_with_its_place() {
    let flow = "blueprint.control_flow[0]";
    check(
        &with_steps(&launch("").replace("\"k\"", "\"x\"")),
        &format!("{flow}.ExecKernel[0]"),
        "unknown kernel",
    );
    check(&with_steps(r#"{"ExecKernel": ["k", []]}"#), &format!("{flow}.ExecKernel"), "a list of 2");
    check(
        &with_steps(r#"{"Exec": []}"#),
        &format!("{flow}.Exec"),
        "unknown step \"Exec\"; known: \"ExecKernel\"",
    );
    check(&with_steps(r#""Repeat""#), flow, "found the text \"Repeat\", expected a step");
    let dim = |key: &str, value: u64, words: &str| {
        let (before, after) =
            (format!("\"{key}\": {{\"Absolute\": "), if key == "shared_mem_bytes" { 0 } else { 1 });
        let step = launch("").replace(&format!("{before}{after}}}"), &format!("{before}{value}}}"));
        check(&with_steps(&step), &format!("{flow}.ExecKernel[2].{key}"), words);
    };
    dim("grid_dim_x", 0, "the value is 0, expected 1 to 2147483647");
    dim("grid_dim_x", 1 << 31, "expected 1 to 2147483647");
    dim("grid_dim_y", 65_536, "expected 1 to 65535");
    dim("grid_dim_z", 65_536, "expected 1 to 65535");
    dim("block_dim_x", 1025, "expected 1 to 1024");
    dim("block_dim_y", 1025, "expected 1 to 1024");
    dim("block_dim_z", 65, "expected 1 to 64");
    dim("shared_mem_bytes", (227 << 10) + 1, "expected 0 to 232448");
    let cluster = |clusters: &str| {
        launch("").replace(r#""shared_mem_bytes""#, &format!(r#"{clusters}, "shared_mem_bytes""#))
    };
    let place = format!("{flow}.ExecKernel[2]");
    let grid = cluster(r#""cluster_dim_x": {"Absolute": 4}, "cluster_dim_y": {"Absolute": 2}"#)
        .replace(r#""grid_dim_x": {"Absolute": 1}"#, r#""grid_dim_x": {"Absolute": 12}"#);
    accept(&with_steps(
        &grid.replace(r#""grid_dim_y": {"Absolute": 1}"#, r#""grid_dim_y": {"Absolute": 2}"#),
    ));
    check(&with_steps(&grid), &place, "a grid of 1 blocks in clusters of 2, expected a multiple");
    check(
        &with_steps(&cluster(r#""cluster_dim_z": {"Absolute": 9}"#)),
        &format!("{place}.cluster_dim_z"),
        "expected 1 to 8",
    );
    check(
        &with_steps(&cluster(r#""cluster_dim_x": {"Absolute": 0}"#)),
        &format!("{place}.cluster_dim_x"),
        "expected 1 to 8",
    );
    check(
        &with_steps(&cluster(r#""cluster_dim_x": {"Absolute": 4}, "cluster_dim_y": {"Absolute": 4}"#)),
        &place,
        "a cluster of 16 blocks, expected at most 8",
    );
    let block =
        launch("").replace(r#""block_dim_x": {"Absolute": 1}"#, r#""block_dim_x": {"Absolute": 1024}"#);
    accept(&with_steps(&block));
    let block = block.replace(r#""block_dim_z": {"Absolute": 1}"#, r#""block_dim_z": {"Absolute": 2}"#);
    check(&with_steps(&block), &format!("{flow}.ExecKernel[2]"), "2048 threads");
}

#[test]
fn malformed_copies_and_fills_are_refused_with_their_place() {
    let flow = "blueprint.control_flow[0]";
    accept(&with_steps(r#"{"Copy": {"from": "W", "to": "B"}}, {"Fill": {"buffer": "A", "byte": 255}}"#));
    check(
        &with_steps(r#"{"Copy": {"from": "X", "to": "B"}}"#),
        &format!("{flow}.Copy.from"),
        "unknown buffer",
    );
    check(&with_steps(r#"{"Copy": {"from": "B", "to": "X"}}"#), &format!("{flow}.Copy.to"), "unknown buffer");
    check(&with_steps(r#"{"Copy": {"from": "B", "to": "W"}}"#), &format!("{flow}.Copy.to"), "is a weight");
    let copy = |key: &str| format!(r#"{{"Copy": {{"from": "B", "to": "A", "{key}": {{"Sizeof": "X"}}}}}}"#);
    for key in ["from_offset", "to_offset", "bytes"] {
        check(&with_steps(&copy(key)), &format!("{flow}.Copy.{key}.Sizeof"), "unknown buffer");
    }
    check(
        &with_steps(r#"{"Fill": {"buffer": "W", "byte": 0}}"#),
        &format!("{flow}.Fill.buffer"),
        "is a weight",
    );
    check(
        &with_steps(r#"{"Fill": {"buffer": "X", "byte": 0}}"#),
        &format!("{flow}.Fill.buffer"),
        "unknown buffer",
    );
    check(
        &with_steps(r#"{"Fill": {"buffer": "B", "byte": 256}}"#),
        &format!("{flow}.Fill.byte"),
        "expected 0 to 255",
    );
    let fill = |key: &str| format!(r#"{{"Fill": {{"buffer": "B", "byte": 0, "{key}": {{"Sizeof": "X"}}}}}}"#);
    for key in ["offset", "bytes"] {
        check(&with_steps(&fill(key)), &format!("{flow}.Fill.{key}.Sizeof"), "unknown buffer");
    }
}

#[test]
fn repeats_nest_no_deeper_than_their_limit() {
    let repeat = |count: u64, body: &str| format!(r#"{{"Repeat": [{{"Absolute": {count}}}, [{body}]]}}"#);
    let nested = |depth: usize| (0..depth).fold(launch(""), |body, _| repeat(1, &body));
    accept(&with_steps(&nested(limits::REPEAT_DEPTH)));
    check(
        &with_steps(&nested(limits::REPEAT_DEPTH + 1)),
        &format!("blueprint.control_flow[0]{}.Repeat", ".Repeat[1][0]".repeat(limits::REPEAT_DEPTH)),
        "expected at most 16",
    );
    accept(&with_steps(&repeat(1_000_000, &launch(""))));
    accept(&with_steps(&repeat(u64::MAX, "")));
    check(
        &with_steps(&repeat(1_000_001, &launch(""))),
        "blueprint.control_flow[0]",
        "expected at most 1000000",
    );
    let overflow = repeat(u64::MAX, &repeat(1000, &launch("")));
    check(&with_steps(&overflow), "blueprint.control_flow[0]", "expected at most 1000000");
    let within = repeat(0, &repeat(1_000_001, &launch("")));
    check(&with_steps(&within), "blueprint.control_flow[0].Repeat[1][0]", "expected at most 1000000");
}

#[test]
fn scalar_arguments_fit_their_type() {
    for accepted in [
        r#"{"I32": -2147483648}"#,
        r#"{"U64": 18446744073709551615}"#,
        r#"{"I64": -9223372036854775808}"#,
        r#"{"Constant": -1}"#,
        r#"{"F32": 1}, {"F32": -0.5e-3}, {"F64": 1e300}"#,
        r#"{"U32": {"Sizeof": "A"}}, {"Ptr": {"buffer": "W", "offset": {"Absolute": 4}}}"#,
    ] {
        accept(&with_steps(&launch(accepted)));
    }
    check_argument(r#"{"I32": 2147483648}"#, "[0].I32", "expected -2147483648 to 2147483647");
    check_argument(r#"{"U32": -1}"#, "[0].U32", "expected 0 to 4294967295");
    check_argument(r#"{"U32": {"Absolute": 4294967296}}"#, "[0].U32", "expected 0 to 4294967295");
    check_argument(r#"{"I64": 9223372036854775808}"#, "[0].I64", "expected -9223372036854775808 to");
    check_argument(r#"{"U64": -1}"#, "[0].U64", "expected 0 to 18446744073709551615");
    accept(&with_steps(&launch(
        r#"{"I8": -128}, {"I8": 127}, {"U8": 255}, {"I16": -32768}, {"I16": 32767}, {"U16": 65535}, {"Bool": true},
           {"F16": -65504}, {"F16": 1e-30}, {"BF16": 3e38}, {"U8": {"Sizeof": "A"}}"#,
    )));
    check_argument(r#"{"I8": 128}"#, "[0].I8", "the value is 128, expected -128 to 127");
    check_argument(r#"{"I8": -129}"#, "[0].I8", "expected -128 to 127");
    check_argument(r#"{"U8": 256}"#, "[0].U8", "expected 0 to 255");
    check_argument(r#"{"U8": {"Absolute": 256}}"#, "[0].U8", "expected 0 to 255");
    check_argument(r#"{"I16": 32768}"#, "[0].I16", "expected -32768 to 32767");
    check_argument(r#"{"U16": -1}"#, "[0].U16", "expected 0 to 65535");
    check_argument(r#"{"F16": 65520}"#, "[0].F16", "6.552e4 is too large, expected at most 6.5504e4");
    check_argument(r#"{"BF16": 3.4e38}"#, "[0].BF16", "too large");
    check_argument(r#"{"F16": "1"}"#, "[0].F16", "expected a number");
    check_argument(r#"{"Bool": 1}"#, "[0].Bool", "found the number 1, expected `true` or `false`");
    check_argument(r#"{"I32": 1.0}"#, "[0].I32", "the value is 1.0, expected a whole number");
    check_argument(r#"{"I32": {"Sizeof": "X"}}"#, "[0].I32.Sizeof", "unknown buffer");
    check_argument(
        r#"{"Constant": 9223372036854775808}"#,
        "[0].Constant",
        "expected -9223372036854775808 to 9223372036854775807",
    );
    check_argument(r#"{"F32": 1e39}"#, "[0].F32", "too large");
    check_argument(r#"{"F64": 1e999}"#, "[0].F64", "1e999 is too large");
    check_argument(r#"{"F64": "1"}"#, "[0].F64", "expected a number");
    check_argument(r#"{"Sizeof": "X"}"#, "[0].Sizeof", "unknown buffer");
    check_argument(
        r#"{"Ptr": {"buffer": "X", "offset": {"Absolute": 0}}}"#,
        "[0].Ptr.buffer",
        "unknown buffer",
    );
    check_argument(
        r#"{"Ptr": {"buffer": "A", "offset": {"Sizeof": "X"}}}"#,
        "[0].Ptr.offset.Sizeof",
        "unknown",
    );
    check_argument(r#"{"Ptr": 5}"#, "[0].Ptr", "expected a name in double quotes, or an object");
    let many = vec![r#"{"Constant": 1}"#; limits::PARAMS].join(",");
    accept(&with_steps(&launch(&many)));
    check_argument(&format!(r#"{many}, {{"I32": 1}}"#), "", "one more entry, expected at most 512");
    check_argument(&format!(r#"{many}, {many}"#), "", "expected at most 512");
}

#[test]
fn fields_of_a_struct_lie_inside_it() {
    let by_value = |size: u64, rest: &str| format!(r#"{{"Struct": {{"size": {size}, {rest}}}}}"#);
    let fields = |fields: &[(u64, &str)]| {
        let fields = fields.iter().map(|(at, value)| format!(r#"{{"offset": {at}, "value": {value}}}"#));
        format!(r#""fields": [{}]"#, fields.collect::<Vec<_>>().join(","))
    };
    let (int, pointer) = (r#"{"I32": 1}"#, r#"{"Ptr": "A"}"#);
    let check = |size, rest: &str, path: &str, words| {
        check_argument(&by_value(size, rest), &format!("[0].Struct{path}"), words)
    };
    accept(&with_steps(&launch(&by_value(328, &fields(&[(0, int), (8, pointer), (4, int)])))));
    let small = [(0, r#"{"U8": 1}"#), (1, r#"{"Bool": true}"#), (2, r#"{"F16": 1}"#), (4, r#"{"I16": 1}"#)];
    accept(&with_steps(&launch(&by_value(6, &fields(&small)))));
    check(6, &fields(&[(1, r#"{"BF16": 1}"#)]), ".fields[0].offset", "expected a multiple of 2");
    check(2, &fields(&[(1, r#"{"U8": 1}"#), (0, r#"{"U16": 1}"#)]), ".fields[1]", "overlaps field 0");
    check(3, &fields(&small[..3]), ".fields[2].offset", "2 bytes at 2, expected inside the 3");
    accept(&with_steps(&launch(&by_value(16, &format!(r#""align": 16, {}"#, fields(&[]))))));
    check(0, &fields(&[]), ".size", "expected 1 to 4096");
    check(4097, &fields(&[]), ".size", "expected 1 to 4096");
    check(12, &fields(&[(0, pointer)]), ".size", "expected a multiple of the alignment 8");
    check(8, &fields(&[(8, int)]), ".fields[0].offset", "expected inside");
    check(8, &fields(&[(0, int), (u64::MAX, int)]), ".fields[1].offset", "expected inside");
    check(16, &fields(&[(4, pointer)]), ".fields[0].offset", "expected a multiple of 8");
    check(16, &fields(&[(12, int), (8, pointer)]), ".fields[1]", "overlaps field 0");
    check(8, &fields(&[(0, &by_value(4, &fields(&[])))]), ".fields[0].value", "a struct within a struct");
    check(8, &fields(&[(0, r#"{"I32": {"Sizeof": "X"}}"#)]), ".fields[0].value.I32.Sizeof", "unknown buffer");
    check(8, r#""align": 3, "fields": []"#, ".align", "expected a power of two");
    check(8, r#""align": 32, "fields": []"#, ".align", "from 1 to 16");
    check(8, &format!(r#""align": 4, {}"#, fields(&[(0, pointer)])), ".align", "from 8 to 16");
    check(8, r#""align": 0, "fields": []"#, ".align", "expected a power of two");
    let large = by_value(4096, &fields(&[]));
    accept(&with_steps(&launch(&large)));
    check_argument(&format!("{large}, {int}"), "", "4104 bytes of parameters, expected at most 4096");
}

#[test]
fn parameters_are_limited_in_all() {
    let list = |i: usize| {
        launch_as(
            &format!(
                r#"{{"Struct": {{"size": 4096, "fields": [{{"offset": 0, "value": {{"I32": {i}}}}}]}}}}"#
            ),
            r#"{"Absolute":1}"#,
        )
    };
    let fits = limits::PARAM_TABLE_BYTES as usize / 4096;
    let lists: Vec<String> = (0..=fits).map(list).collect();
    accept(&with_steps(&lists[..fits].join(",")));
    check(
        &with_steps(&lists.join(",")),
        &format!("blueprint.control_flow[{fits}].ExecKernel[1]"),
        "expected at most 16777216 in all",
    );
    // Equal lists count once.
    accept(&with_steps(&vec![list(7); fits + 1].join(",")));
}

#[test]
fn a_function_says_whether_its_calls_may_be_shared() {
    let said = |isolation: &str| with_steps("").replacen('{', &format!("{{\"isolation\": {isolation}, "), 1);
    let read = |json: &str| parse(json.as_bytes()).unwrap().isolation();
    assert_eq!(read(&with_steps("")), Isolation::Auto);
    assert_eq!(read(&said("\"auto\"")), Isolation::Auto);
    assert_eq!(read(&said("\"process\"")), Isolation::Process);
    assert_eq!(
        parse(said("\"process\"").as_bytes()).unwrap().checked().unwrap().isolation(),
        Isolation::Process
    );
    assert_eq!(read(&said("\"shared\"")), Isolation::Shared);
    check(&said("\"alone\""), "isolation", "\"auto\", \"process\"");
    check(&said("true"), "isolation", "");
}
