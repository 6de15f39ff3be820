{{/* Names, labels, and parts that several templates need. */}}

{{- define "pappus.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pappus.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of the gateway's pods: none of the supervisor's, whose selector names another program. */}}
{{- define "pappus.gatewaySelector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pappus.gatewayLabels" -}}
{{ include "pappus.gatewaySelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "pappus.labels" -}}
{{ include "pappus.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "pappus.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The clients' socket, in the directory that tenants mount; the operators' is where only this pod is. */}}
{{- define "pappus.socket" -}}{{ .Values.socketDir }}/pappus.sock{{- end -}}
{{- define "pappus.adminSocket" -}}/run/pappus-admin/admin.sock{{- end -}}

{{- define "pappus.configSecret" -}}
{{- .Values.existingConfigSecret | default (include "pappus.fullname" .) -}}
{{- end -}}

{{/* A device as --device has it: its name, and its settings in the order of the alphabet. */}}
{{- define "pappus.device" -}}
{{- $settings := list -}}
{{- range $key, $value := omit . "name" -}}
{{- $settings = append $settings (printf "%s=%v" $key $value) -}}
{{- end -}}
{{- .name -}}{{- if $settings -}}:{{- join "," $settings -}}{{- end -}}
{{- end -}}

{{/* Layers without which workers must not run: what the profile promises, unless the values say otherwise. */}}
{{- define "pappus.sandboxRequire" -}}
{{- $promised := dict
    "plain" (list "seccomp" "landlock" "uid")
    "hardened" (list "seccomp" "landlock" "uid" "netns" "mountns" "ipcns")
    "userns" (list "seccomp" "landlock" "uid" "pidns" "netns" "mountns" "ipcns") -}}
{{- $asked := .Values.security.sandboxRequire -}}
{{- if kindIs "slice" $asked -}}{{- toJson $asked -}}{{- else -}}{{- get $promised .Values.security.profile | toJson -}}{{- end -}}
{{- end -}}

{{/* How a program logs. */}}
{{- define "pappus.logEnvironment" -}}
- name: PAPPUS_LOG
  value: {{ .Values.log.level }}
- name: PAPPUS_LOG_FORMAT
  value: {{ .Values.log.format }}
{{- end -}}

{{/* What values contradict each other in. */}}
{{- define "pappus.check" -}}
{{- $gpus := 0 -}}
{{- range .Values.devices -}}
{{- if not (hasPrefix "cpu" .name) -}}
{{- $gpus = add $gpus 1 -}}
{{- if and (has $.Values.gpu.mode (list "runtimeClass" "cdi")) (not .memory) -}}
{{- fail (printf "devices: %s needs memory=: with gpu.mode=%s the scheduler does not know that Pappus has this GPU, so others may use it, too" .name $.Values.gpu.mode) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.gpu.mode "none") (gt $gpus 0) -}}
{{- fail "devices name a GPU, and gpu.mode is none: choose resource, runtimeClass or cdi" -}}
{{- end -}}
{{- if and (ne .Values.gpu.mode "none") (eq $gpus 0) -}}
{{- fail (printf "gpu.mode is %s, and no device names a GPU: add {name: \"cuda:all\"}" .Values.gpu.mode) -}}
{{- end -}}
{{- if and (eq .Values.gpu.mode "resource") (gt $gpus (int .Values.gpu.count)) -}}
{{- fail (printf "devices name %d GPUs, and gpu.count is %d" $gpus (int .Values.gpu.count)) -}}
{{- end -}}
{{- if and .Values.gateway.enabled (eq .Values.security.profile "userns") -}}
{{- fail "gateway.enabled with security.profile=userns: users outside of the supervisor's pod have no uid there, so no gateway can be named; choose plain or hardened" -}}
{{- end -}}
{{- if and .Values.gateway.enabled .Values.existingConfigSecret -}}
{{- fail "gateway.enabled with existingConfigSecret: the chart cannot add the gateway's uid to a configuration that is not its own; run the gateway by a manifest of your own" -}}
{{- end -}}
{{- if and .Values.gateway.ingress.enabled (not (and .Values.gateway.enabled .Values.gateway.ingress.host)) -}}
{{- fail "gateway.ingress needs gateway.enabled and gateway.ingress.host" -}}
{{- end -}}
{{- if and (not .Values.metrics.enabled) (or .Values.metrics.serviceMonitor.enabled .Values.metrics.prometheusRule.enabled) -}}
{{- fail "metrics.serviceMonitor and metrics.prometheusRule need metrics.enabled" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.from) -}}
{{- fail "metrics.serviceMonitor: name the pods of Prometheus in networkPolicy.from, otherwise nobody reaches the metrics" -}}
{{- end -}}
{{- end -}}

{{/* A probe: by HTTP where there are metrics, otherwise over the operators' socket. */}}
{{- define "pappus.probe" -}}
{{- if .root.Values.metrics.enabled -}}
httpGet:
  path: {{ .path }}
  port: metrics
{{- else -}}
exec:
  command: [pappus, --socket={{ include "pappus.adminSocket" .root }}, {{ join ", " .command }}]
{{- end -}}
{{- end -}}
