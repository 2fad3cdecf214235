{{/* Names and labels. */}}
{{- define "warmroute.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
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

{{/* The proxy's TOML. Numbers go through toJson, since values of YAML are floats. */}}
{{- define "warmroute.config" -}}
[proxy]
region = {{ .Values.region | toJson }}
host = "0.0.0.0"
port = 8000
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
{{- $proxies := int .Values.replicas }}
{{- if ne .Values.autoscaling.kind "none" }}{{ $proxies = int .Values.autoscaling.maxReplicas }}{{ end }}
{{- if gt $proxies 1 }}
other_proxies = [{{ range $number := until $proxies }}{{ if $number }}, {{ end }}"{{ include "warmroute.scheme" $ | lower }}://{{ include "warmroute.name" $ }}-{{ $number }}.{{ include "warmroute.name" $ }}-proxies:8000"{{ end }}]
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
{{- with .Values.discovery }}
{{- if .enabled }}

[[discovery]]
id = "cluster"
kind = {{ .kind | toJson }}
namespace = {{ $.Release.Namespace | toJson }}
{{- if eq .kind "inferencepool" }}
name = {{ .pool | toJson }}
{{- else }}
name = {{ .service | toJson }}
{{- end }}
{{- if .engine }}

[discovery.engine]
{{- range $key, $value := .engine }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.embeddedEngines.enabled }}
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
