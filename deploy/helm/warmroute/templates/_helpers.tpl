{{/* At most 45 characters: a StatefulSet's name may have 52, of which 7 are `-picker`. Always with the chart's name, by
which alerts find proxies. */}}
{{- define "warmroute.name" -}}
{{- $release := .Release.Name | trunc 45 | trimSuffix "-" }}
{{- if contains .Chart.Name $release }}{{ $release }}{{ else }}{{ $release | trunc 35 | trimSuffix "-" }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "warmroute.selector" -}}
app.kubernetes.io/name: warmroute
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warmroute.labels" -}}
{{ include "warmroute.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "warmroute.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{- define "warmroute.scheme" -}}
{{ if .Values.secrets.tls.name }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{/* What every container of the chart may: nothing. */}}
{{- define "warmroute.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Two thirds of the volume: the rest is for the journal, SQLite's WAL and what running turns write. */}}
{{- define "warmroute.fileBytes" -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- $size := .Values.persistence.size }}
{{- div (mul (regexFind "^[0-9]+" $size | int64) (get $units (regexFind "[KMGT]i$" $size)) 2) 3 }}
{{- end }}

{{/* An amount of a budget in config, if there is one. */}}
{{- define "warmroute.amount" -}}
{{ regexFind "(?m)^\\s*usd_per_(day|month)\\s*=" .Values.config }}
{{- end }}

{{/* What a running proxy does not apply: pods are replaced when it changes. All else is live. In config, amounts of
budgets are live once the proxy has a store for them: a database, or its own if it started with an amount. */}}
{{- define "warmroute.restart" -}}
{{- $proxy := omit .Values.proxy "media_schemes" "media_networks" "cors_origins" "websockets" }}
{{- $limits := pick .Values.limits "body_memory_bytes" "connections" "connect_timeout_s" "response_bytes" "keyed_outlive_s" "keyed_replay_s" "keyed_answer_bytes" "keyed_total_bytes" "kept_prompt_bytes" "prompt_parts_bytes" }}
{{- $discovery := .Values.discovery.enabled }}
{{- $counts := or (ne .Values.secrets.ledgerDsn.name "") (ne (include "warmroute.amount" .) "") }}
{{- $tables := "(?m)^[ \\t]*\\[+\\s*tracing\\b.*(\\s*\\n[ \\t]*[^\\s\\[].*)*" }}
{{- list $counts (regexFindAll $tables .Values.config -1) .Values.region .Values.regions $proxy $limits .Values.secrets .Values.adminKeySha256 (omit .Values.ledger "migrate") .Values.persistence .Values.tracing .Values.eachProxyCountsAlone (include "warmroute.proxies" .) $discovery | toJson | sha256sum }}
{{- end }}

{{/* How many proxies there may be. */}}
{{- define "warmroute.proxies" -}}
{{- if eq .Values.autoscaling.kind "none" }}{{ .Values.replicas }}{{ else }}{{ .Values.autoscaling.maxReplicas }}{{ end }}
{{- end }}

{{/* How many pickers there are. */}}
{{- define "warmroute.pickers" -}}
{{- if .Values.gateway.enabled }}{{ .Values.gateway.replicas }}{{ else }}0{{ end }}
{{- end }}

{{/* How many there may be that count. */}}
{{- define "warmroute.all" -}}
{{- add (include "warmroute.proxies" . | int) (include "warmroute.pickers" . | int) }}
{{- end }}

{{/* Refuses what several proxies would each spend whole, as the proxy does. */}}
{{- define "warmroute.counted" -}}
{{- $all := include "warmroute.all" . | int }}
{{- $alone := "or eachProxyCountsAlone: true, if each proxy may spend it whole" }}
{{- if not .Values.eachProxyCountsAlone }}
{{- if and (include "warmroute.amount" .) (not .Values.secrets.ledgerDsn.name) }}
{{- fail (printf "%d proxies would each spend the budgets of config: they need secrets.ledgerDsn.name, %s" $all $alone) }}
{{- end }}
{{- if and (regexMatch "(?m)^\\s*(requests_per_minute|tokens_per_minute|requests_at_once)\\s*=" .Values.config) (not .Values.secrets.redisUrl.name) }}
{{- fail (printf "%d proxies would each count the limits of config alone: they need secrets.redisUrl.name, %s" $all $alone) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The proxy's TOML. Numbers go through toJson, since values of YAML are floats. */}}
{{- define "warmroute.config" -}}
[proxy]
region = {{ .Values.region | toJson }}
host = "0.0.0.0"
port = {{ if .Picker }}9002{{ else }}8000{{ end }}
admin_host = "0.0.0.0"
admin_port = 8001
state_dir = "/var/lib/warmroute"
watch_config = true
{{- with .Values.adminKeySha256 }}
admin_key_sha256 = {{ . | toJson }}
{{- end }}
{{- if .Values.secrets.tls.name }}
tls_cert = "/etc/warmroute-secrets/tls/tls.crt"
tls_key = "/etc/warmroute-secrets/tls/tls.key"
{{- end }}
{{- $proxies := int (include "warmroute.proxies" .) }}
{{- if gt (include "warmroute.all" . | int) 1 }}
{{- include "warmroute.counted" . }}
{{- end }}
{{- if .Picker }}
{{- if gt (int .Values.gateway.replicas) 1 }}
other_proxies = [{{ range $number := until (int .Values.gateway.replicas) }}{{ if $number }}, {{ end }}"http://{{ include "warmroute.name" $ }}-picker-{{ $number }}.{{ include "warmroute.name" $ }}-pickers:8001"{{ end }}]
{{- end }}
{{- else if gt $proxies 1 }}
other_proxies = [{{ range $number := until $proxies }}{{ if $number }}, {{ end }}"{{ include "warmroute.scheme" $ | lower }}://{{ include "warmroute.name" $ }}-{{ $number }}.{{ include "warmroute.name" $ }}-proxies:8000"{{ end }}]
{{- end }}
{{- if .Values.eachProxyCountsAlone }}
counts_alone = true
{{- end }}
{{- range $key, $value := .Values.proxy }}
{{ $key }} = {{ $value | toJson }}
{{- end }}

[secret]
file = "/etc/warmroute-secrets/fleet/secret"

[limits]
shutdown_grace_s = {{ .Values.longestStreamSeconds | toJson }}
{{- range $key, $value := .Values.limits }}
{{ $key }} = {{ $value | toJson }}
{{- end }}

[ledger]
sync = {{ .Values.ledger.sync | toJson }}
{{- with .Values.ledger.fileDays }}
ledger_file_days = {{ . | toJson }}
{{- end }}
{{- if .Values.persistence.enabled }}
ledger_file_bytes = {{ include "warmroute.fileBytes" . }}
{{- end }}
{{- if .Values.secrets.ledgerDsn.name }}
dsn_file = "/etc/warmroute-secrets/ledger/dsn"
{{- with .Values.ledger.keepDays }}
keep_days = {{ . | toJson }}
{{- end }}
{{- end }}
{{- if .Values.secrets.redisUrl.name }}

[redis]
url_file = "/etc/warmroute-secrets/redis/url"
{{- end }}
{{- with .Values.tracing }}
{{- if .endpoint }}

[tracing]
endpoint = {{ .endpoint | toJson }}
ratio = {{ .ratio | toJson }}
{{- end }}
{{- end }}

[[region]]
name = {{ .Values.region | toJson }}
url = ""
{{- range .Values.regions }}

[[region]]
name = {{ .name | toJson }}
url = {{ .url | toJson }}
rtt_ms = {{ .rttMs | default 0 | toJson }}
{{- end }}
{{- if .Picker }}

[[discovery]]
id = "pool"
kind = "inferencepool"
namespace = {{ .Release.Namespace | toJson }}
name = {{ include "warmroute.name" . | toJson }}
{{- with .Values.gateway.engine }}

[discovery.engine]
{{- range $key, $value := . }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.discovery }}
{{- if and .enabled (not $.Picker) }}

[[discovery]]
id = "cluster"
kind = {{ .kind | toJson }}
namespace = {{ $.Release.Namespace | toJson }}
{{- if eq .kind "inferencepool" }}
name = {{ .pool | toJson }}
{{- else }}
name = {{ .service | toJson }}
{{- end }}
{{- if .deletionCost }}
deletion_cost = true
{{- end }}
{{- if .engine }}

[discovery.engine]
{{- range $key, $value := .engine }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.embeddedEngines.enabled (not .Picker) }}
{{- range $number := until (int .Values.embeddedEngines.replicas) }}

[[engine]]
id = "embedded-{{ $number }}"
url = "http://{{ include "warmroute.name" $ }}-engine-{{ $number }}.{{ include "warmroute.name" $ }}-engines:30000"
region = {{ $.Values.region | toJson }}
{{- end }}
{{- end }}
{{- range .Values.tenants }}

[[tenant]]
name = {{ .name | toJson }}
key_sha256 = {{ .keySha256 | toJson }}
{{- end }}

{{ .Values.config }}
{{- end }}
