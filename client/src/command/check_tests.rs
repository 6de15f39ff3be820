//! Tests of `function check`: what is told of configurations, and of module files beside them.

use super::*;

/// Writes matmul's configuration, checks it with these inputs, and returns what is printed.
fn check(inputs: &[&str], json: bool) -> Result<String> {
    check_of("matmul", inputs, json)
}

/// The same of another function.
fn check_of(function: &str, inputs: &[&str], json: bool) -> Result<String> {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join(format!("{function}.json"));
    std::fs::write(&config, pappus_kernels::config(function).unwrap()).unwrap();
    let matrix: Vec<u8> = [2i64, 1, 2, 3, 4].into_iter().flat_map(i64::to_le_bytes).collect();
    std::fs::write(dir.path().join("a.bin"), matrix).unwrap();
    let inputs = inputs.iter().map(|input| input.replace("DIR", dir.path().to_str().unwrap()));
    let arguments = CheckArguments {
        config,
        inputs: inputs.map(|input| input.parse().unwrap()).collect(),
        weights: Vec::new(),
        functions: None,
        strict: false,
        json: crate::arguments::Json { json },
    };
    let mut out = anstream::StripStream::new(Vec::new());
    run(arguments, &mut out)?;
    Ok(String::from_utf8(out.into_inner()).unwrap())
}

#[test]
fn module_files_that_are_there_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    };
    let config = write("configs/matmul.json", pappus_kernels::config("matmul").unwrap().as_bytes());
    write("built/mlops.wasm", pappus_kernels::artefact("mlops.wasm").unwrap());
    write("built/mlops.ptx", pappus_kernels::artefact("mlops.ptx").unwrap());
    let check = || {
        let arguments = CheckArguments {
            config: config.clone(),
            inputs: Vec::new(),
            weights: Vec::new(),
            functions: None,
            strict: false,
            json: crate::arguments::Json { json: false },
        };
        let mut out = anstream::StripStream::new(Vec::new());
        run(arguments, &mut out).map(|()| String::from_utf8(out.into_inner()).unwrap())
    };
    let text = check().unwrap();
    assert!(text.contains("mlops.wasm: kernels and parameters fit"), "{text}");
    assert!(text.contains("mlops.ptx: kernels and parameters fit"), "{text}");
    assert!(!text.contains("missing"), "{text}");
    // Another module under the name, and a kernel that takes something else.
    write("built/mlops.wasm", pappus_kernels::artefact("vision.wasm").unwrap());
    let why = check().unwrap_err().to_string();
    assert!(why.contains("matmul.json:3:15: at kernels[0]: "), "{why}");
    assert!(why.contains("mlops.wasm: module") && why.contains("no kernel `matmul_para`"), "{why}");
    write("built/mlops.wasm", pappus_kernels::artefact("mlops.wasm").unwrap());
    write("built/mlops.ptx", b".entry matmul_para(.param .u64 a, .param .u64 b) {}");
    let why = check().unwrap_err().to_string();
    assert!(why.contains("mlops.ptx: kernel `matmul_para` takes 2 arguments"), "{why}");
}

#[test]
fn a_folder_is_checked_file_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| std::fs::write(dir.path().join(name), content).unwrap();
    let check = |json| {
        let arguments = CheckArguments {
            config: dir.path().to_owned(),
            inputs: Vec::new(),
            weights: Vec::new(),
            functions: None,
            strict: false,
            json: crate::arguments::Json { json },
        };
        let mut out = anstream::StripStream::new(Vec::new());
        let outcome = run(arguments, &mut out);
        (String::from_utf8(out.into_inner()).unwrap(), outcome.map_err(|why| why.to_string()))
    };
    assert!(check(false).1.unwrap_err().contains("no .json file"));
    write("matmul.json", pappus_kernels::config("matmul").unwrap());
    write("notes.txt", "no configuration");
    assert_eq!(check(false).1, Ok(()));
    write("broken.json", "{}");
    let (text, outcome) = check(false);
    assert!(
        text.contains("matmul.json: a valid function") && text.contains("broken.json: not valid"),
        "{text}"
    );
    assert!(outcome.unwrap_err().starts_with("1 of 2 configurations in "));
    let value: Value = serde_json::from_str(&check(true).0).unwrap();
    assert_eq!((&value["valid"], &value["functions"][1]["valid"]), (&false.into(), &true.into()));
}

#[test]
fn unknown_sizes_are_expressions() {
    let text = check(&[], false).unwrap();
    for line in [
        "B       output  i64[A[0] × A[0] + 1]  sizeof(A)",
        "launches: 1",
        "kernel: matmul_para(",
        "missing: module mlops.wasm",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn known_sizes_are_numbers() {
    let text = check(&["A=128KiB"], false).unwrap();
    for line in ["131072 (128.0 KiB)", "memory: 262144 bytes (256.0 KiB)"] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn json_is_one_object() {
    let value: Value = serde_json::from_str(&check(&["A=DIR/a.bin"], true).unwrap()).unwrap();
    assert_eq!(value["launches"], 1);
    assert_eq!((&value["pool_bytes"], &value["unshared_pool_bytes"]), (&512.into(), &512.into()));
    assert_eq!(value["buffers"][1]["bytes"], 40);
    assert_eq!(value["missing_modules"][0]["name"], "mlops.wasm");
}

#[test]
fn memory_is_told_with_and_without_sharing() {
    let text = check(&["A=4MiB"], false).unwrap();
    assert!(text.contains("memory: 8388608 bytes (8.0 MiB)\n"), "one launch uses both: {text}");
    let text = check(&[], false).unwrap();
    assert!(text.contains("memory: at most 512 × ceil(sizeof(A) / 256) bytes"), "{text}");
    // Three of 4 MiB, of which the first and the last are not live together.
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("chain.json");
    let launch = |from: &str, to: &str| {
        let key = |key: &str| format!(r#""{key}_dim_x": 1, "{key}_dim_y": 1, "{key}_dim_z": 1"#);
        let dims = format!(r#"{}, {}, "shared_mem_bytes": 1"#, key("grid"), key("block"));
        let dims = dims.replace(": 1", r#": {"Absolute": 1}"#);
        format!(r#"{{"ExecKernel": ["k", [{{"Ptr": "{from}"}}, {{"Ptr": "{to}"}}], {{{dims}}}]}}"#)
    };
    let buffers = ["b", "c", "d"].map(|name| format!(r#""{name}": {{"Absolute": 4194304}}"#)).join(",");
    let flow = [launch("b", "c"), launch("c", "d")].join(",");
    let text = format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{"inputs": [], "buffers": {{{buffers}}},
            "outputs": ["d"], "control_flow": [{flow}]}}}}"#
    );
    std::fs::write(&config, text).unwrap();
    let print = |json| {
        let json = crate::arguments::Json { json };
        let config = config.clone();
        let arguments = CheckArguments {
            config,
            inputs: Vec::new(),
            weights: Vec::new(),
            functions: None,
            strict: false,
            json,
        };
        let mut out = anstream::StripStream::new(Vec::new());
        run(arguments, &mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    };
    let line = "memory: 8388608 bytes (8.0 MiB); without sharing 12582912 bytes (12.0 MiB)\n";
    assert!(print(false).contains(line), "{}", print(false));
    let value: Value = serde_json::from_str(&print(true)).unwrap();
    assert_eq!(
        (&value["pool_bytes"], &value["unshared_pool_bytes"]),
        (&(8 << 20).into(), &(12 << 20).into())
    );
}

#[test]
fn sizes_that_cannot_be_are_refused_with_their_place() {
    let why = check(&["nobody=8"], false).unwrap_err().to_string();
    assert!(why.contains("nobody"), "{why}");
    // Numbers that are not as many as the first of them says.
    let why = check(&["A=DIR/a.bin,DIR/a.bin"], false).unwrap_err().to_string();
    assert!(
        why.contains("\"A\" has 80 bytes, expected 40 (i64[5]) with these inputs, computed from A[0] = 2"),
        "{why}"
    );
    let why = check(&["A=i64:0"], false).unwrap_err().to_string();
    assert!(
        why.contains("matmul.json:")
            && why.contains("grid_dim_x: word 0 of \"A\" is 0: ceil(A[0] / 32) is 0"),
        "{why}"
    );
}

#[test]
fn what_nothing_uses_is_told_and_with_strict_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("f.json");
    let unused = r#"{"modules": [{"module_name": "m", "path": "m.wasm"}, {"module_name": "n", "path": "n.wasm"}],
 "kernels": [{"module_name": "m", "kernel_name": "k"}, {"module_name": "m", "kernel_name": "l"}],
 "blueprint": {"inputs": ["A", "B"], "weights": ["W"], "outputs": ["C", "D"],
  "buffers": {"C": {"Sizeof": "A"}, "D": 8, "E": 8},
  "types": {"A": {"dtype": "f32", "shape": [{"Free": "n"}]}, "B": {"dtype": "f32", "shape": [{"Free": "m"}]}},
  "control_flow": [{"ExecKernel": ["k", [{"Ptr": "A"}, {"Ptr": "C"}], {"grid_dim_x": {"Free": "n"}, "block_dim_x": 1}]}]}}"#;
    std::fs::write(&config, unused).unwrap();
    let check = |path: &Path, strict: bool, json: bool| {
        let json = crate::arguments::Json { json };
        let (config, inputs) = (path.to_owned(), Vec::new());
        let mut out = anstream::StripStream::new(Vec::new());
        let outcome = run(
            CheckArguments { config, inputs, weights: Vec::new(), functions: None, strict, json },
            &mut out,
        );
        (String::from_utf8(out.into_inner()).unwrap(), outcome.map_err(|why| why.to_string()))
    };
    let (text, outcome) = check(&config, false, false);
    assert_eq!(outcome, Ok(()));
    let warned: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("warning: ")).collect();
    let of = |line: &str| line.split_once("f.json:").unwrap().1.to_owned();
    let warned: Vec<String> = warned.into_iter().map(of).collect();
    assert_eq!(
        warned,
        [
            "1:54: at modules[1]: no kernel is of module \"n\"",
            "2:56: at kernels[1]: no step launches kernel \"l\"",
            "3:32: at blueprint.inputs[1]: nothing uses input \"B\"",
            "3:50: at blueprint.weights[0]: nothing uses weights \"W\"",
            "4:42: at blueprint.buffers.D: no step names output \"D\": it is zero bytes",
            "4:50: at blueprint.buffers.E: nothing uses buffer \"E\"",
        ]
    );
    assert_eq!(check(&config, true, false).1, Err("6 warnings, none is allowed by --strict".into()));
    let value: Value = serde_json::from_str(&check(&config, true, true).0).unwrap();
    assert_eq!((&value["valid"], &value["warnings"][5]["line"]), (&false.into(), &4.into()));
    assert!(check(dir.path(), false, false).1.is_ok());
    assert!(check(dir.path(), true, false).1.unwrap_err().starts_with("1 of 1 configurations"));
    // Used by its size, by a word of it, or by a dimension that no other input tells.
    let used = unused.replace("{\"grid_dim_x\": {\"Free\": \"n\"}", "{\"grid_dim_x\": {\"Free\": \"m\"}");
    std::fs::write(&config, &used).unwrap();
    assert!(!check(&config, false, false).0.contains("input \"B\""));
    let of_wrong = used.replace("\"k\", [", "\"q\", [");
    std::fs::write(&config, of_wrong).unwrap();
    let value: Value = serde_json::from_str(&check(&config, false, true).0).unwrap();
    assert_eq!((&value["valid"], &value["errors"][0]["line"]), (&false.into(), &6.into()));
}

#[test]
fn a_shape_is_enough_to_check_everything() {
    let by_size = check_of("softmax", &["A=24"], false).unwrap();
    assert!(by_size.contains("not checked: what follows from rows, cols: shapes say that"), "{by_size}");
    let by_shape = check_of("softmax", &["A=f32[2,3]"], false).unwrap();
    assert!(by_shape.contains("f32[2, 3]") && !by_shape.contains("not checked"), "{by_shape}");
    let too_few = check_of("softmax", &["A=f32[2]"], false).unwrap_err().to_string();
    assert!(too_few.contains("input \"A\""), "{too_few}");
    // Words that sizes are computed from are not known then, and not asked for.
    let words = check(&["A=i64[5]"], false).unwrap();
    assert!(words.contains("i64[A[0] × A[0] + 1]"), "{words}");
    // Nothing is asked of who says nothing.
    assert!(!check_of("softmax", &[], false).unwrap().contains("not checked"));
}

#[test]
fn what_does_not_fit_is_told_of_the_file_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["linalg.gfx942.hsaco", "linalg.wasm"] {
        std::fs::write(dir.path().join(name), pappus_kernels::artefact(name).unwrap()).unwrap();
    }
    let config = pappus_kernels::config("vec_add").unwrap().replace("vec_add_f", "no_such_kernel");
    for named in ["linalg.gfx942.hsaco", "linalg.wasm"] {
        let path = dir.path().join("config.json");
        std::fs::write(&path, config.replace("../built/linalg.wasm", named)).unwrap();
        let why = examine(&path, &[], &[], None).err().unwrap().to_string();
        assert!(why.contains(&format!("{named}: ")), "{why}");
    }
}

/// Writes `mlops` in these forms beside matmul's configuration, and checks that.
fn check_forms(forms: &[(&str, &[u8])], json: bool) -> String {
    check_config(pappus_kernels::config("matmul").unwrap(), forms, json)
}

/// The same with this configuration.
fn check_config(text: &str, forms: &[(&str, &[u8])], json: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    let built = dir.path().join("built");
    std::fs::create_dir_all(dir.path().join("configs")).unwrap();
    std::fs::create_dir_all(&built).unwrap();
    let config = dir.path().join("configs/matmul.json");
    std::fs::write(&config, text).unwrap();
    for (name, content) in forms {
        std::fs::write(built.join(name), content).unwrap();
    }
    let json = crate::arguments::Json { json };
    let arguments = CheckArguments {
        config,
        inputs: Vec::new(),
        weights: Vec::new(),
        functions: None,
        strict: false,
        json,
    };
    let mut out = anstream::StripStream::new(Vec::new());
    run(arguments, &mut out).unwrap();
    String::from_utf8(out.into_inner()).unwrap()
}

/// matmul's PTX with lines in front of its kernel's first statement.
fn ptx_with(lines: &str) -> String {
    let text = std::str::from_utf8(pappus_kernels::artefact("mlops.ptx").unwrap()).unwrap();
    let begin = text.find("matmul_para(").unwrap();
    let first = begin + text[begin..].find("ld.param").unwrap();
    format!("{}{lines}{}", &text[..first], &text[first..])
}

#[test]
fn ptx_and_wasm_can_be_shared() {
    let file = |name| pappus_kernels::artefact(name).unwrap();
    let forms = [("mlops.ptx", file("mlops.ptx")), ("mlops.wasm", file("mlops.wasm"))];
    let said = check_forms(&forms, false);
    assert_eq!(said.matches(": can run in a shared worker\n").count(), 2, "{said}");
    let told: Value = serde_json::from_str(&check_forms(&forms, true)).unwrap();
    assert_eq!(told["modules"][0]["sharing"], json!({"shared": true, "in_the_way": [], "more": 0}));
}

#[test]
fn a_configuration_that_wants_its_own_process_is_told_so() {
    let wasm = [("mlops.wasm", pappus_kernels::artefact("mlops.wasm").unwrap())];
    let said = "sharing: isolation is \"process\": no call runs in a shared worker\n";
    for (isolation, is_said) in [("process", true), ("auto", false)] {
        let config = pappus_kernels::config("matmul").unwrap();
        let config = config.replacen('{', &format!("{{\"isolation\": \"{isolation}\", "), 1);
        let lines = check_config(&config, &wasm, false);
        assert_eq!(lines.contains(said), is_said, "{lines}");
        let told: Value = serde_json::from_str(&check_config(&config, &wasm, true)).unwrap();
        assert_eq!(told["isolation"], isolation);
    }
    assert!(!check_forms(&wasm, false).contains(said));
}

#[test]
fn what_stands_in_the_way_of_sharing_is_told_up_to_ten_times() {
    let ptx = ptx_with(&"brkpt;\n".repeat(12));
    let said = check_forms(&[("mlops.ptx", ptx.as_bytes())], false);
    assert!(said.contains("mlops.ptx: cannot run in a shared worker:\n  line "), "{said}");
    let reason = ", in matmul_para: `brkpt`: instructions for debuggers cannot be fenced\n";
    assert_eq!(said.matches(reason).count(), 10, "{said}");
    assert!(said.contains("\n  and 2 more\n"), "{said}");
    let told: Value = serde_json::from_str(&check_forms(&[("mlops.ptx", ptx.as_bytes())], true)).unwrap();
    let sharing = &told["modules"][0]["sharing"];
    assert_eq!((&sharing["shared"], &sharing["more"]), (&json!(false), &json!(2)));
    assert_eq!(sharing["in_the_way"][9]["kernel"], "matmul_para");
}

#[test]
fn machine_code_cannot_be_shared() {
    let fatbin = 0xba55_ed50u32.to_le_bytes();
    let said = check_forms(&[("mlops.fatbin", &fatbin)], false);
    assert!(said.contains("machine code: cannot be shared; package PTX beside it\n"), "{said}");
    let ptx = pappus_kernels::artefact("mlops.ptx").unwrap();
    let said = check_forms(&[("mlops.fatbin", &fatbin), ("mlops.ptx", ptx)], false);
    assert!(said.contains("machine code: cannot be shared, the PTX beside it is taken\n"), "{said}");
    let hsaco = pappus_kernels::artefact("mlops.hsaco").unwrap();
    let said = check_forms(&[("mlops.hsaco", hsaco)], false);
    assert!(said.contains("machine code: cannot be shared\n"), "{said}");
}
